"""``dspark-calibrator engine``: the torch engine behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from calibrator.cli import output
from calibrator.cli.log_setup import configure_logging
from calibrator.cli.running import stop_on_signal
from calibrator.cli.services import DeploymentOption
from serving_adapter.adapter import ServingAdapter
from serving_adapter.contract import EngineIdentity
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
        from serving_adapter.engines.torch.endpoint import Endpoint
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
    )
    with output.err.status(f"loading {model} and measuring") if output.err.is_terminal else _nothing():
        try:
            built = build_engine(options, chosen, lambda identity: _adapter(settings, identity))
        except (ModelNotFoundError, ValueError, RuntimeError) as error:
            raise output.UsageError(str(error)) from error
    service = EngineService(built)
    with contextlib.ExitStack() as stack:
        adapter = built.engine.adapter
        if adapter is not None:
            stack.callback(adapter.close)
        if with_sidecar:
            sidecar = Sidecar(settings)
            sidecar.start()
            stack.callback(sidecar.stop)
        stop = stack.enter_context(stop_on_signal())
        endpoint = Endpoint(service, host, port)  # before the engine starts: the port may be taken
        service.start()
        stack.callback(service.stop)
        endpoint.start()
        stack.callback(endpoint.stop)
        output.out.print(f"serving {built.name} on http://{host}:{endpoint.port}/v1", markup=False)
        stop.wait()
    return 0


def _adapter(settings: Settings, identity: EngineIdentity) -> ServingAdapter:
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


def _nothing() -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()
