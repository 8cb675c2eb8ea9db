"""``dspark-calibrator engine``: the torch engine behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from calibrator.cli import output
from calibrator.cli.log_setup import configure_logging
from calibrator.cli.running import stop_on_signal
from calibrator.cli.services import DeploymentOption
from serving_adapter.adapter import ServingAdapter
from serving_adapter.contract import EngineIdentity
from serving_adapter.ring_presence import present_ring
from serving_adapter.scheduler import scheduler_from_name
from serving_adapter.settings import Settings, load_settings
from serving_adapter.sidecar import Sidecar


def engine(
    model: Annotated[
        str, typer.Option(help="smollm2, or a folder or hub name that transformers loads.")
    ] = "smollm2",
    drafter: Annotated[
        str,
        typer.Option(
            help="self, self:second, dspark, dspark:joint, none, or the folder of a DeepSpec checkpoint."
        ),
    ] = "self",
    scheduler: Annotated[
        str, typer.Option(help="early-stop, asynchronous, fixed:K, threshold:P, off or none.")
    ] = "early-stop",
    min_predicted_gain: Annotated[
        float, typer.Option(help="Trim only when that promises at least this relative gain.", min=0.0)
    ] = 0.0,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 8000,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    precision: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    max_requests: Annotated[int, typer.Option(help="Most requests in a batch.", min=1, max=4096)] = 16,
    max_context: Annotated[int, typer.Option(help="Most positions of a request.", min=16)] = 2048,
    threads: Annotated[int, typer.Option(help="CPU threads; 0 leaves it to PyTorch.", min=0)] = 0,
    profile: Annotated[
        bool, typer.Option("--profile/--no-profile", help="Measure what a step costs before serving.")
    ] = True,
    profile_seconds: Annotated[
        float, typer.Option(help="Most seconds that measuring may take.", min=0.0)
    ] = 60.0,
    grace_seconds: Annotated[
        float, typer.Option(help="When told to end: time for the requests under way.", min=0.0)
    ] = 10.0,
    with_sidecar: Annotated[
        bool, typer.Option("--sidecar", help="Run the pod's two loops in this process too.")
    ] = False,
    deployment: DeploymentOption = None,
    replica: Annotated[
        str | None, typer.Option(help="Name of this replica (DSPARK_REPLICA).", show_default=False)
    ] = None,
    ring: Annotated[str | None, typer.Option(help="Shared memory (DSPARK_RING).", show_default=False)] = None,
) -> int:
    """Serve a language model with DSpark speculative decoding behind the adapter.

    Needs the extra `engine`. Rows go to the ring that a sidecar drains; parameters that it mirrors are
    applied between steps.

    Examples:

      dspark-calibrator engine --model smollm2 --port 8000

      dspark-calibrator engine --drafter dspark --scheduler threshold:0.5 --sidecar
    """
    settings = load_settings({"deployment": deployment, "replica": replica, "ring": ring})
    configure_logging(settings)
    try:
        chosen = scheduler_from_name(scheduler, min_predicted_gain)
    except ValueError as error:
        raise output.UsageError(f"--scheduler: {error}") from error
    try:
        from serving_adapter.engines.torch.building import EngineOptions, build_engine
        from serving_adapter.engines.torch.endpoint import Endpoint, PortError
        from serving_adapter.engines.torch.loading import ModelNotFoundError
        from serving_adapter.engines.torch.service import EngineService
    except ImportError as error:
        raise output.UsageError(
            f"this command needs PyTorch: pip install 'dspark-calibrator[engine]' ({error})"
        ) from error
    options = EngineOptions(
        model=model,
        drafter=drafter,
        device=device,
        precision=precision,
        threads=threads,
        max_requests=max_requests,
        max_context=max_context,
        profile=profile,
        profile_seconds=profile_seconds,
    )
    if drafter != "none":
        _refuse_taken(settings)
    with contextlib.ExitStack() as stack:
        try:
            endpoint = Endpoint(None, host, port)  # before anything is loaded: the port may be taken
            stack.callback(endpoint.stop)
            with _told() as tell:
                built = build_engine(options, chosen, lambda identity: _adapter(settings, identity), tell)
            adapter = built.engine.adapter
            if adapter is not None:
                stack.callback(adapter.close)
            service = EngineService(built)
            if with_sidecar:
                sidecar = Sidecar(settings)
                sidecar.start()
                stack.callback(sidecar.stop)
            stop = stack.enter_context(stop_on_signal())
            service.start()
            stack.callback(service.stop)
            endpoint.start(service)
            stack.callback(endpoint.shut_down, grace_seconds)
        except (ModelNotFoundError, PortError, ValueError, RuntimeError) as error:
            raise output.UsageError(str(error)) from error
        if not output.err.is_terminal:
            output.err.print(f"listening on {host}:{endpoint.port}", markup=False, soft_wrap=True)
        output.out.print(f"serving {built.name} on http://{host}:{endpoint.port}/v1", markup=False)
        stop.wait()
    return 0


def _refuse_taken(settings: Settings) -> None:
    """Leave the ring of a running engine to it: taking it over would end that engine's telemetry."""
    with contextlib.suppress(OSError):  # the adapter says what is wrong with it
        ring = present_ring(settings.ring)
        if ring is not None and ring.written:
            raise output.UsageError(
                f"--ring: {settings.ring} is written by a running engine (process {ring.writer}, replica "
                f"{ring.text.replica}); end that one, or give this one a ring of its own"
            )


def _adapter(settings: Settings, identity: EngineIdentity) -> ServingAdapter:
    _refuse_taken(settings)
    return ServingAdapter(
        identity,
        settings.deployment,
        settings.replica,
        settings.ring,
        explore=settings.explore,
        salt=settings.salt,
        signing_key=settings.signing_key_bytes,
        segment_sets=True,
        soft_labels=True,
    )


@contextlib.contextmanager
def _told() -> Iterator[Callable[[str], None]]:
    """Give what tells of the start: in one place of a terminal, else line by line."""
    if output.err.is_terminal:
        with output.err.status("starting") as status:
            yield status.update
        return
    yield lambda text: output.err.print(text, markup=False, soft_wrap=True)
