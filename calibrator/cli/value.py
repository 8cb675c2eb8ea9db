"""``dspark-calibrator value``: is calibrating worth anything on this traffic?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from calibrator.cli import output
from calibrator.cli.evaluate import AsJson, Records
from calibrator.core.bootstrap import Interval
from calibrator.core.explored_share import explored_share
from calibrator.core.value import PolicyValue, ValueReport, value_report
from calibrator.core.value.batches import SCHEDULERS, SchedulerName
from calibrator.formats.cost_files import read_cost
from calibrator.formats.temperatures import read_parameters
from collectors.files import read_records

MAX_CONCURRENCY = 4096


def value(
    records: Records,
    cost_file: Annotated[
        Path,
        typer.Option(
            "--cost",
            help="Cost of a step: measured samples (.csv with batch_tokens, seconds), a parameter document "
            "or cost curve, or a file of SGLang, TensorRT-LLM or vLLM.",
            show_default=False,
        ),
    ],
    concurrency: Annotated[
        str, typer.Option(help="Requests running at a time, separated by commas.")
    ] = "1,8,32,128",
    parameters: Annotated[
        list[Path] | None,
        typer.Option(help="Parameter file to replay (native, SGLang or TensorRT-LLM); may be repeated."),
    ] = None,
    scheduler: Annotated[
        str,
        typer.Option(help="asynchronous (what SGLang and vLLM run) or early-stop (the paper's Algorithm 1)."),
    ] = "asynchronous",
    resamples: Annotated[
        int, typer.Option(min=20, max=10_000, help="Bootstrap resamples of requests.")
    ] = 400,
    as_json: AsJson = False,
) -> None:
    """Replay the scheduler over logged rounds: tokens per second under each policy.

    Policies: verify all (what an engine without a curve does), verify none, raw confidences (identity),
    each --parameters file, the best monotone map, and perfect foresight. Intervals are 95 % over requests.

    Examples:

      dspark-calibrator value rounds.npz --cost cost-samples.csv

      dspark-calibrator value rounds.npz --cost sps.json --parameters fit.json --concurrency 8,64 --json
    """
    loads = _concurrencies(concurrency)
    chosen = _scheduler(scheduler)
    cost = read_cost(cost_file)
    rounds, notes = read_records(records)
    sets = {}
    for path in parameters or []:
        given = read_parameters(path)
        if len(given.temperatures) != rounds.gamma:
            raise output.UsageError(
                f"{path}: temperatures: got {len(given.temperatures)} positions, "
                f"expected gamma = {rounds.gamma} as in the records"
            )
        sets[path.name] = given
    explored = explored_share(rounds)
    if explored.contradicted:  # by such a probability nothing can be weighed: bounds only
        rounds = dataclasses.replace(rounds, explore=np.zeros_like(rounds.explore))
    try:
        report = value_report(rounds, cost.at, sets, loads, scheduler=chosen, resamples=resamples)
    except ValueError as error:
        raise output.UsageError(str(error)) from error
    said = [*notes, *report.notes, *([explored.note] if explored.contradicted else [])]
    for note in said:
        output.print_note(note)
    if as_json:
        output.print_json(
            {
                "rounds": report.rounds,
                "requests": report.requests,
                "scheduler": chosen,
                "values": [dataclasses.asdict(v) | {"wasted": v.wasted} for v in report.values],
                "notes": said,
            }
        )
        return
    output.out.print(
        value_table(report, f"{report.rounds:,} rounds of {report.requests:,} requests, {chosen}")
    )


def value_table(report: ValueReport, title: str) -> object:
    """Lay out one row per load and policy."""
    f = output.figure
    return output.table(
        title,
        ("requests", "policy", "tokens/s", "against identity", "interval", "against verify all",
         "regret", "accepted", "verified", "wasted"),
        [
            (str(v.concurrency), v.policy, f(v.tokens_per_second.estimate, 1),
             f(v.against_identity.estimate, 3), _interval(v.against_identity),
             f(v.against_verify_all.estimate, 3), _regret(v), f(v.accepted, 2), f(v.verified, 2),
             f(v.wasted, 2))
            for v in sorted(report.values, key=lambda v: report.concurrencies.index(v.concurrency))
        ],
    )  # fmt: skip


def _regret(entry: PolicyValue) -> str:
    return output.figure(entry.regret.estimate if entry.regret else None, 3)


def _interval(interval: Interval) -> str:
    return f"[{output.figure(interval.low, 3)}, {output.figure(interval.high, 3)}]"


def _concurrencies(text: str) -> list[int]:
    try:
        loads = [int(part) for part in text.split(",")]
    except ValueError:
        loads = []
    if not loads or not all(1 <= load <= MAX_CONCURRENCY for load in loads):
        raise output.UsageError(
            f"--concurrency: got {text!r}, expected numbers from 1 to {MAX_CONCURRENCY} separated by commas"
        )
    return loads


def _scheduler(text: str) -> SchedulerName:
    for name in SCHEDULERS:
        if text == name:
            return name
    raise output.UsageError(f"--scheduler: got {text!r}, expected {' or '.join(SCHEDULERS)}")
