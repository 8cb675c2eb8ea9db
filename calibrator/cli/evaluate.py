"""``dspark-calibrator evaluate``: how well calibrated are these records?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from calibrator.cli import output, record_figures
from calibrator.core.labels import EndOfSequence
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.record import RecordFigure, figures_of_record
from calibrator.core.report import PositionReport, mean_ece, position_report
from calibrator.formats.temperatures import read_parameters
from collectors.files import read_records

Records = Annotated[
    list[Path],
    typer.Argument(
        metavar="RECORDS...",
        help="DeepSpec JSON lines (.jsonl, .jsonl.gz), round columns (.npz) or SGLang shards (.pt).",
        show_default=False,
    ),
]
Bins = Annotated[int, typer.Option("--bins", min=1, max=1000, help="Equal-width bins of the ECE.")]
EndOption = Annotated[
    str,
    typer.Option(
        "--end-of-sequence",
        help="Positions behind a stop token in the draft: keep (as peers do), draft_stop (leave out, "
        "unbiased) or accepted_stop (leave out only if accepted).",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def end_of_sequence(value: str) -> EndOfSequence:
    """Check the option's value."""
    known: tuple[EndOfSequence, ...] = ("keep", "draft_stop", "accepted_stop")
    for rule in known:
        if value.replace("-", "_") == rule:
            return rule
    raise output.UsageError(f"--end-of-sequence: got {value!r}, expected {', '.join(known)}")


def evaluate(
    records: Records,
    parameters: Annotated[
        Path | None,
        typer.Option(help="Judge under these parameters (native, SGLang or TensorRT-LLM file)."),
    ] = None,
    bins: Bins = 15,
    end: EndOption = "keep",
    as_json: AsJson = False,
) -> None:
    """Report calibration per draft position.

    The figure of record takes the noise out and, on truncated records with exploration, is doubly robust;
    beside it stands the plain ECE (inverse-propensity weighted there). Truncated records without exploration
    describe verified traffic only, say so, and give bounds for the traffic.

    Examples:

      dspark-calibrator evaluate rounds.npz

      dspark-calibrator evaluate rounds.npz --parameters fit.json --bins 20 --json
    """
    rule = end_of_sequence(end)
    rounds, notes = read_records(records)
    chosen = ParameterSet.identity(rounds.gamma) if parameters is None else read_parameters(parameters)
    if len(chosen.temperatures) != rounds.gamma:
        raise output.UsageError(
            f"{parameters}: temperatures: got {len(chosen.temperatures)} positions, "
            f"expected gamma = {rounds.gamma} as in the records"
        )
    survival = chosen.survival(rounds)
    reports = position_report(survival, rounds, bins, rule)
    records_of = figures_of_record(survival, rounds, bins, rule)
    notes = [*notes, *record_figures.explore_notes(rounds)]
    for note in notes:
        output.print_note(note)
    if as_json:
        output.print_json(
            {
                "rows": len(rounds),
                "gamma": rounds.gamma,
                "bins": bins,
                "mean_ece": mean_ece(reports),
                "population": reports[0].population,
                "mean_ece_of_record": record_figures.mean_of_record(records_of),
                "positions": [
                    dataclasses.asdict(r)
                    | {"status": record_figures.status_of(r, f), "record": dataclasses.asdict(f)}
                    for r, f in zip(reports, records_of, strict=True)
                ],
                "notes": list(notes),
            }
        )
        return
    output.out.print(report_table(f"{len(rounds):,} rounds, {bins} bins", reports, records_of))
    output.out.print(record_figures.record_table(reports, records_of))
    output.out.print(
        f"mean ECE of record {output.figure(record_figures.mean_of_record(records_of))}   "
        f"plain {output.figure(mean_ece(reports))}   population: {reports[0].population}"
    )


def report_table(title: str, reports: list[PositionReport], records: list[RecordFigure]) -> object:
    """Lay out one row per position."""
    f = output.figure
    return output.table(
        title,
        (
            "pos", "n", "n_eff", "coverage", "predicted", "observed", "plain ECE", "floor", "gap",
            "Brier", "log loss", "AUROC", "status",
        ),
        [
            (
                str(r.position), f"{r.n:,}", f(r.n_eff, 0), f(r.coverage, 3), f(r.predicted), f(r.observed),
                f(r.ece), f(r.noise_floor), f(r.gap), f(r.brier), f(r.log_loss),
                f(r.auroc, 3), record_figures.status_of(r, record),
            )
            for r, record in zip(reports, records, strict=True)
        ],
    )  # fmt: skip
