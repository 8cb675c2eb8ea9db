"""The torch engine on this machine: tokens per second by policy, cost of the adapter, greedy equality.

``speed``    tokens per second of the small language model under every policy, at 1, 4 and 16 requests.
``adapter``  step time with and without the adapter, in pairs.
``greedy``   greedy output against the model's own: 50 prompts x every scheduler x batches of 1, 4, 16.
"""

from __future__ import annotations

import argparse
import copy
import json
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.figures import wants_table
from calibrator.core.affine import fit_affine
from calibrator.core.labels import at_risk, prefix_labels
from serving_adapter.adapter import ServingAdapter
from serving_adapter.contract import EngineIdentity, Rounds
from serving_adapter.engines.torch.building import EngineOptions, build_drafter
from serving_adapter.engines.torch.engine import TorchEngine
from serving_adapter.engines.torch.loading import LoadedTarget, load_target
from serving_adapter.engines.torch.measuring import measure_profile
from serving_adapter.engines.torch.packed_model import PackedModel
from serving_adapter.engines.torch.prompts import DOMAINS, chat_tokens, prompts
from serving_adapter.engines.torch.requests import GenerationRequest
from serving_adapter.parameters import Parameters
from serving_adapter.scheduler import scheduler_from_name
from serving_adapter.shared_memory import segment_path

POLICIES = (
    "no drafter",
    "off",
    "fixed:1",
    "fixed:2",
    "fixed:4",
    "threshold:0.5",
    "early-stop, raw",
    "early-stop, calibrated",
)
SCHEDULERS = ("off", "none", "fixed:1", "fixed:3", "threshold:0.5", "early-stop", "asynchronous")
TEMPERATURE = 0.7


class FixedParameters(ServingAdapter):
    """An adapter with given parameters that keeps the rows it sees."""

    def __init__(self, gamma: int, parameters: Parameters | None = None) -> None:
        super().__init__(EngineIdentity(target="t", drafter="d", gamma=gamma, engine="torch"), "bench", "r")
        self._given = Parameters.identity(gamma) if parameters is None else parameters
        self.columns: list[dict[str, Any]] = []

    def current(self) -> Parameters:
        return self._given

    def observe(self, logits: Any, accepted: Any, **columns: Any) -> None:
        if len(logits):
            self.columns.append({"logits": logits, "accepted": accepted, **columns})

    def rounds(self) -> Rounds:
        names = ("logits", "accepted", "verified", "request", "step", "draft_stop")
        return Rounds.build(**{name: np.concatenate([c[name] for c in self.columns]) for name in names})


def the_requests(
    loaded: LoadedTarget, count: int, tokens: int, *, first: int = 0, temperature: float = TEMPERATURE
) -> list[GenerationRequest]:
    """Questions of all domains in turn."""
    each = -(-count // len(DOMAINS))
    by_domain = [prompts(domain, each, first) for domain in DOMAINS]
    mixed = [(d, texts[i]) for i in range(each) for d, texts in zip(DOMAINS, by_domain, strict=True)]
    return [
        GenerationRequest(
            request_id=f"{first}-{i}",
            prompt=chat_tokens(loaded.tokenizer, text),
            max_tokens=tokens,
            temperature=temperature,
            seed=first + i,
            segment=domain,
        )
        for i, (domain, text) in enumerate(mixed[:count])
    ]


def serve(
    engine: TorchEngine, requests: Sequence[GenerationRequest], clock: Callable[[], float]
) -> tuple[int, float, float]:
    """Committed tokens, seconds of steps without prompts, and mean batch tokens."""
    for request in requests:
        engine.submit(request)
    committed, seconds, batch_tokens, steps = 0, 0.0, 0, 0
    while not engine.idle:
        began = clock()
        result = engine.step()
        if result is not None:
            without_prompts = result.step_seconds / (result.step_seconds + result.prefill_seconds)
            seconds += (clock() - began) * without_prompts
            committed += result.committed
            batch_tokens += result.batch_tokens
            steps += 1
    return committed, seconds, batch_tokens / max(steps, 1)


def calibrated(target: PackedModel, loaded: LoadedTarget, options: EngineOptions, count: int) -> Parameters:
    """Affine parameters fitted on fully verified rounds of other questions."""
    drafter = build_drafter(options, target)
    assert drafter is not None
    adapter = FixedParameters(drafter.gamma)
    engine = TorchEngine(target, drafter, None, adapter, max_requests=options.max_requests)
    serve(engine, the_requests(loaded, count, 48, first=1000), time.perf_counter)
    rounds = adapter.rounds()
    fit = fit_affine(rounds.logits, prefix_labels(rounds), at_risk(rounds, "draft_stop"))
    return Parameters(
        version=1,
        form="affine",
        temperatures=np.asarray(fit.temperatures),
        offsets=np.asarray(fit.offsets),
        explore=0.0,
        share=1.0,
        cost=None,
    )


def speed(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second by policy and concurrency; all policies serve the same questions in turn."""
    clock = time.process_time if options.cpu_time else time.perf_counter
    if options.cpu_time:
        torch.set_num_threads(1)
    loaded = load_target("smollm2")
    results: dict[str, dict[str, Any]] = {}
    loads = [int(load) for load in options.concurrency.split(",")]
    for drafter_name in options.drafters.split(","):
        build = EngineOptions(drafter=drafter_name, max_requests=max(loads), max_context=512)
        target = PackedModel(loaded.model, rows=build.max_requests, limit=build.max_context)
        parameters = calibrated(target, loaded, build, options.fit_requests)
        drafter = build_drafter(build, target)
        assert drafter is not None
        profile = measure_profile(
            target, drafter, max_requests=max(loads), repetitions=options.repeats + 2, clock=clock
        )
        table: dict[str, Any] = {policy: {} for policy in POLICIES}
        for load in loads:
            samples: dict[str, list[tuple[int, float, float]]] = {policy: [] for policy in POLICIES}
            requests = the_requests(loaded, max(options.requests, load), options.tokens)
            for _ in range(options.repeats):  # policies in turn: a slow minute hits all of them
                for policy in POLICIES:
                    engine = engine_for(policy, target, drafter, load, parameters)
                    engine.profile = profile
                    samples[policy].append(serve(engine, requests, clock))
                    note(f"{drafter_name} {policy} at {load}: {samples[policy][-1]}")
            for policy in POLICIES:
                rates = [tokens / seconds for tokens, seconds, _ in samples[policy]]
                table[policy][str(load)] = {
                    "tokens_per_second": float(np.median(rates)),
                    "spread": float(max(rates) - min(rates)),
                    "batch_tokens": float(np.mean([batch for *_, batch in samples[policy]])),
                }
        results[drafter_name] = {
            "table": table,
            "profile": {
                "verify": dict(zip(profile.verify_tokens, profile.verify_seconds, strict=True)),
                "draft": dict(zip(profile.draft_requests, profile.draft_seconds, strict=True)),
            },
        }
    return {
        "benchmark": "engine-speed",
        "threads": torch.get_num_threads(),
        "clock": "cpu" if options.cpu_time else "wall",
        "results": results,
    }


def engine_for(
    policy: str, target: PackedModel, drafter: Any, load: int, parameters: Parameters
) -> TorchEngine:
    if policy == "no drafter":
        return TorchEngine(target, None, max_requests=load)
    name, _, kind = policy.partition(", ")
    given = parameters if kind == "calibrated" else None
    adapter = FixedParameters(drafter.gamma, given)
    return TorchEngine(target, drafter, scheduler_from_name(name), adapter, max_requests=load)


def adapter_cost(options: argparse.Namespace) -> dict[str, Any]:
    """Two engines take the same steps in turn, one with an adapter and its ring, one without."""
    clock = time.process_time if options.cpu_time else time.perf_counter
    if options.cpu_time:
        torch.set_num_threads(1)
    loaded = load_target("smollm2")
    build = EngineOptions(drafter="dspark", max_requests=options.load, max_context=512)
    ring = f"dspark-bench-{secrets.token_hex(6)}"
    identity = EngineIdentity(target="t", drafter="dspark", gamma=7, engine="torch")
    adapter = ServingAdapter(identity, "bench", "r", ring, soft_labels=True)
    engines = []
    for given in (adapter, None):
        target = PackedModel(loaded.model, rows=build.max_requests, limit=build.max_context)
        engine = TorchEngine(
            target, build_drafter(build, target), None, given, max_requests=build.max_requests
        )
        engines.append(engine)
        for request in the_requests(loaded, options.load, 300):
            engine.submit(request)
        engine.step()
    ratios, seconds = [], []
    try:
        for step in range(options.steps):
            pair = [0.0, 0.0]
            for index in (0, 1) if step % 2 else (1, 0):
                began = clock()
                engines[index].step()
                pair[index] = clock() - began
            ratios.append(pair[0] / pair[1] - 1.0)
            seconds.append(pair[1])
        own = _own_seconds(engines[0], options.steps)
    finally:
        adapter.close()
        for left in segment_path(ring).parent.glob(f"{ring}*"):
            left.unlink()
    middle = float(np.median(ratios))
    return {
        "benchmark": "engine-adapter",
        "pairs": len(ratios),
        "requests": options.load,
        "step_seconds": float(np.median(seconds)),
        "median_difference": middle,
        "interval": 1.96 * 1.25 * float(np.std(ratios)) / len(ratios) ** 0.5,
        "telemetry_seconds": own,
        "telemetry_share": own / float(np.median(seconds)),
    }


def _own_seconds(engine: TorchEngine, steps: int) -> float:
    """Median time a step spends on rows and parameters, measured from inside."""
    spent: list[float] = []
    clock = [0.0]

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                clock[0] += time.perf_counter() - began

        return wrapped

    engine._record = timed(engine._record)  # type: ignore[method-assign]
    engine._emit = timed(engine._emit)  # type: ignore[method-assign]
    engine._apply_parameters = timed(engine._apply_parameters)  # type: ignore[method-assign]
    for _ in range(min(steps, 20)):
        clock[0] = 0.0
        if engine.step() is not None:
            spent.append(clock[0])
    return float(np.median(spent))


def greedy(options: argparse.Namespace) -> dict[str, Any]:
    """The whole matrix on the small language model; counts outputs that part from the model's own."""
    loaded = load_target("smollm2")
    plain = copy.deepcopy(loaded.model, {id(p): p for p in loaded.model.parameters()}).eval()
    requests = the_requests(loaded, options.prompts, options.tokens, temperature=0.0)
    expected = []
    for request in requests:
        tokens = torch.tensor([request.prompt])
        mask = torch.ones_like(tokens)
        done = plain.generate(
            tokens, attention_mask=mask, max_new_tokens=options.tokens, do_sample=False, eos_token_id=None
        )
        expected.append(done[0, len(request.prompt) :].tolist())
    note("reference done")
    parted: dict[str, int] = {}
    for drafter_name in options.drafters.split(","):
        build = EngineOptions(drafter=drafter_name, max_requests=16, max_context=512)
        target = PackedModel(loaded.model, rows=16, limit=512)
        drafter = build_drafter(build, target)
        assert drafter is not None
        profile = measure_profile(target, drafter, max_requests=16, repetitions=2)
        for name in options.schedulers.split(","):
            for batch in (1, 4, 16):
                engine = TorchEngine(target, drafter, scheduler_from_name(name), max_requests=batch)
                engine.profile = profile
                waiting, running = list(requests), []
                while waiting or not engine.idle:  # they join while others run
                    running.extend(engine.submit(request) for request in waiting[:2])
                    waiting = waiting[2:]
                    engine.step()
                wrong = sum(r.output != e for r, e in zip(running, expected, strict=True))
                parted[f"{drafter_name}, {name}, batch {batch}"] = wrong
                note(f"{drafter_name} {name} {batch}: {wrong} of {len(expected)} part")
    return {
        "benchmark": "engine-greedy",
        "prompts": options.prompts,
        "tokens": options.tokens,
        "parted": parted,
        "total_parted": sum(parted.values()),
    }


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def print_speed(report: dict[str, Any]) -> None:
    for drafter, result in report["results"].items():
        table = result["table"]
        loads = list(next(iter(table.values())))
        per = "CPU second, one thread" if report["clock"] == "cpu" else "second"
        print(f"\nSmolLM2-135M, drafter {drafter}: tokens per {per} (batch tokens of a step)")
        print(f"{'':26}" + "".join(f"{load + ' requests':>20}" for load in loads))
        for policy, cells in table.items():
            row = (f"{c['tokens_per_second']:11.1f} ({c['batch_tokens']:5.1f})" for c in cells.values())
            print(f"{policy:26}" + "".join(f"{text:>20}" for text in row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="?", default="speed", choices=("speed", "adapter", "greedy"))
    parser.add_argument("--json", nargs="?", const="-", help="one JSON object on standard output")
    parser.add_argument("--drafters", default="dspark", help="self, self:second, dspark, dspark:joint")
    parser.add_argument("--concurrency", default="1,4,16", help="speed: requests at a time")
    parser.add_argument("--requests", type=int, default=6, help="speed: questions, at least the batch")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of every answer")
    parser.add_argument("--repeats", type=int, default=2, help="speed: times every policy serves")
    parser.add_argument(
        "--cpu-time", action="store_true", help="one thread and CPU seconds, for a busy machine"
    )
    parser.add_argument("--fit-requests", type=int, default=48, help="speed: questions to calibrate on")
    parser.add_argument("--load", type=int, default=16, help="adapter: requests in the batch")
    parser.add_argument("--steps", type=int, default=40, help="adapter: pairs of steps")
    parser.add_argument("--prompts", type=int, default=50, help="greedy: prompts")
    parser.add_argument("--schedulers", default=",".join(SCHEDULERS), help="greedy: schedulers")
    options = parser.parse_args()
    report = {"speed": speed, "adapter": adapter_cost, "greedy": greedy}[options.what](options)
    if not wants_table(report, options.json):
        return
    if options.what == "speed":
        print_speed(report)
    else:
        print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
