"""``dspark-calibrator fit``: parameters from records, as the peers' fitters do or as production does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from calibrator.cli import output, record_figures
from calibrator.cli.evaluate import AsJson, Bins, EndOption, Records, end_of_sequence
from calibrator.cli.fit_notes import CurrentError, few_rounds, nothing_learned
from calibrator.core.candidate import ProposalOptions
from calibrator.core.offline import OfflineFit, fit_offline
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.proposal import Proposal, propose
from calibrator.core.record import RecordFigure, figures_of_record
from calibrator.core.report import PositionReport, mean_ece, position_report
from calibrator.core.temperature import parse_grid
from calibrator.formats.temperatures import FILE_FORMATS, encode_file, read_parameters
from calibrator.service.temperature_export import ExportRefusedError, refit_as_temperatures
from collectors.files import read_records
from serving_adapter.contract import Evidence, ParameterDocument, Rounds

_FORMS = ("temperature", "affine", "auto")
_OBJECTIVES = ("ece", "likelihood")


def fit(
    records: Records,
    out: Annotated[Path | None, typer.Option(help="Write the parameters to this file.")] = None,
    form: Annotated[
        str,
        typer.Option(help="temperature, affine (adds an offset per position) or auto (held-out evidence)."),
    ] = "temperature",
    objective: Annotated[
        str | None, typer.Option(help="Of the temperature form: ece (default) or likelihood.")
    ] = None,
    bins: Bins = 15,
    grid: Annotated[
        str, typer.Option(help="Temperatures to try: sglang, deepspec or LO:HI:N (log-spaced).")
    ] = "sglang",
    file_format: Annotated[
        str, typer.Option("--format", help="Of --out: native, sglang or tensorrt-llm.")
    ] = "native",
    gate: Annotated[bool, typer.Option("--gate", help="Apply the production rules.")] = False,
    current: Annotated[
        Path | None, typer.Option(help="With --gate: the parameters in force (default: identity).")
    ] = None,
    deployment: Annotated[str, typer.Option(help="Name in the native file.")] = "offline",
    end: EndOption = "keep",
    as_json: AsJson = False,
) -> None:
    """Fit calibration parameters to records.

    By default this does what the peers' fitters do: temperature form, plain argmin of the ECE over the
    grid, every given row, no gate. --gate applies the production rules: rows held out by request judge,
    positions without evidence keep the current value, and the set changes only if it is better.

    Examples:

      dspark-calibrator fit rounds.npz --out sts.json --format sglang

      dspark-calibrator fit rounds.npz --form affine --out parameters.json --json

      dspark-calibrator fit monday.npz tuesday.npz --form auto --gate --current parameters.json
    """
    _check("--form", form, _FORMS)
    _check("--format", file_format, FILE_FORMATS)
    if objective is not None:
        _check("--objective", objective, _OBJECTIVES)
    if form == "affine" and objective == "ece":
        raise output.UsageError(
            "--objective: got ece, expected likelihood: the affine form is fitted by likelihood"
        )
    if form == "affine" and file_format != "native":
        raise output.UsageError(
            f"--form: got affine, expected temperature: {file_format} files hold temperatures only"
        )
    if current is not None and not gate:
        raise output.UsageError("--current: got a file without --gate, expected both")
    rule = end_of_sequence(end)
    points = _grid(grid)
    rounds, read_notes = read_records(records)
    notes: Sequence[str] = read_notes
    # A file that can hold temperatures only is an engine that can apply temperatures only.
    supported = ("temperature", "affine") if file_format == "native" else ("temperature",)
    options = ProposalOptions(
        form=form,  # type: ignore[arg-type]
        supported_forms=supported,  # type: ignore[arg-type]
        objective=objective,  # type: ignore[arg-type]
        bins=bins,
        grid=tuple(points),
        end_of_sequence=rule,
    )
    proposal: Proposal | None = None
    now: CurrentError | None = None
    statuses: Sequence[str]
    if gate:
        in_force = ParameterSet.identity(rounds.gamma) if current is None else read_parameters(current)
        in_force = replace(in_force, entries=())  # fits the pooled set, whatever goes before it
        if len(in_force.temperatures) != rounds.gamma:
            raise output.UsageError(
                f"{current}: temperatures: got {len(in_force.temperatures)} positions, "
                f"expected gamma = {rounds.gamma} as in the records"
            )
        if current is not None:
            now = CurrentError.of(in_force.survival(rounds), rounds, bins, rule)
        proposal = propose(rounds, in_force, options)
        chosen = proposal.parameters if proposal.publish else in_force
        statuses = [g.status for g in proposal.gates] or ["insufficient"] * rounds.gamma
    else:
        fitted: OfflineFit = fit_offline(rounds, options)
        chosen, statuses = fitted.parameters, fitted.statuses
        notes = (*read_notes, *fitted.notes)
    useless = nothing_learned(rounds, rule)
    notes = (*notes, *(useless or (() if gate else few_rounds(rounds, rule))))
    raw, calibrated = ParameterSet.identity(rounds.gamma).survival(rounds), chosen.survival(rounds)
    before = position_report(raw, rounds, bins, rule)
    after = position_report(calibrated, rounds, bins, rule)
    record = tuple(figures_of_record(survival, rounds, bins, rule) for survival in (raw, calibrated))
    contradicted = record_figures.explore_notes(rounds)
    notes = (*notes, *contradicted)
    statuses = [
        record_figures.status_of(a, f)
        if status == "ok" and (contradicted or a.population != "traffic")
        else status
        for status, a, f in zip(statuses, after, record[1], strict=True)
    ]
    if out is not None:
        document = _document(chosen, rounds, before, after, statuses, deployment)
        if chosen.form not in supported:
            # What is in force is kept and is affine: its temperatures alone would say something else.
            document, refit_notes = _refitted(document, rounds, options)
            notes = (*notes, *refit_notes)
        payload = encode_file(
            document,
            file_format,  # type: ignore[arg-type]
            dataset=", ".join(p.name for p in records),
            num_samples=len(rounds),
        )
        output.write_file(out, payload)
    for note in notes:
        output.print_note(note)
    _print(rounds, chosen, before, after, record, now, statuses, proposal, notes, out, as_json)


def _refitted(
    document: ParameterDocument, rounds: Rounds, options: ProposalOptions
) -> tuple[ParameterDocument, Sequence[str]]:
    try:
        return refit_as_temperatures(document, rounds, np.ones(len(rounds)), options)
    except ExportRefusedError as error:
        raise output.UsageError(f"--format: {error}") from error


def _print(
    rounds: Rounds,
    chosen: ParameterSet,
    before: Sequence[PositionReport],
    after: Sequence[PositionReport],
    record: Sequence[Sequence[RecordFigure]],
    now: CurrentError | None,
    statuses: Sequence[str],
    proposal: Proposal | None,
    notes: Sequence[str],
    out: Path | None,
    as_json: bool,
) -> None:
    positions: list[dict[str, Any]] = [
        {
            "position": b.position,
            "temperature": float(chosen.temperatures[k]),
            "offset": float(chosen.offsets[k]),
            "ece_before": b.ece,
            **({} if now is None else {"ece_current": now.positions[k]}),
            "ece_after": a.ece,
            "noise_floor": a.noise_floor,
            "record_before": dataclasses.asdict(record[0][k]),
            "record_after": dataclasses.asdict(record[1][k]),
            "n_eff": b.n_eff,
            "coverage": b.coverage,
            "status": statuses[k],
        }
        for k, (b, a) in enumerate(zip(before, after, strict=True))
    ]
    result: dict[str, Any] = {
        "rows": len(rounds),
        "gamma": rounds.gamma,
        "form": chosen.form,
        "temperatures": chosen.temperatures.tolist(),
        "offsets": chosen.offsets.tolist(),
        "mean_ece_before": mean_ece(before),
        "mean_ece_after": mean_ece(after),
        "mean_ece_of_record_before": record_figures.mean_of_record(record[0]),
        "mean_ece_of_record_after": record_figures.mean_of_record(record[1]),
        "population": before[0].population,
        **({} if now is None else {"mean_ece_current": now.plain, "mean_ece_of_record_current": now.record}),
        "positions": positions,
        "notes": list(notes),
    }
    if proposal is not None:
        result["publish"] = proposal.publish
        result["reasons"] = list(proposal.reasons)
        result["requests"] = proposal.requests
        result["mean_ece_held_out"] = {"before": mean_ece(proposal.before), "after": mean_ece(proposal.after)}
    if as_json:
        output.print_json(result)
        return
    f = output.figure
    columns = (
        "pos", "temperature", "offset", "plain ECE raw", *([] if now is None else ["current"]), "after",
        "floor", "n_eff", "coverage", "status",
    )  # fmt: skip
    lines = [
        (
            str(p["position"]), f(p["temperature"]), f(p["offset"]),
            f(p["ece_before"]), *([] if now is None else [f(p["ece_current"])]), f(p["ece_after"]),
            f(p["noise_floor"]), f(p["n_eff"], 0), f(p["coverage"], 3), p["status"],
        )
        for p in positions
    ]  # fmt: skip
    output.out.print(output.table(f"{len(rounds):,} rounds, form {chosen.form}", columns, lines))
    output.out.print(record_figures.record_table(after, record[1], record[0]))
    output.out.print(
        f"mean ECE of record {f(result['mean_ece_of_record_before'])} raw, "
        f"{'' if now is None else f'{f(now.record)} current set, '}"
        f"{f(result['mean_ece_of_record_after'])} after; plain {f(result['mean_ece_before'])} raw, "
        f"{'' if now is None else f'{f(now.plain)} current set, '}"
        f"{f(result['mean_ece_after'])} after, on the fitted rows   "
        f"population: {result['population']}"
    )
    if proposal is not None:
        output.out.print("published set" if proposal.publish else "kept the parameters in force")
        for reason in proposal.reasons:
            output.out.print(f"  {reason}", markup=False)
    if out is not None:
        output.out.print(f"wrote {out}", markup=False)


def _document(
    chosen: ParameterSet,
    rounds: Rounds,
    before: Sequence[PositionReport],
    after: Sequence[PositionReport],
    statuses: Sequence[str],
    deployment: str,
) -> ParameterDocument:
    return ParameterDocument(
        deployment=deployment,
        fingerprint="",
        version=1,
        gamma=rounds.gamma,
        form=chosen.form,
        temperatures=chosen.temperatures.tolist(),
        offsets=chosen.offsets.tolist(),
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        evidence=Evidence(
            window="offline",
            rounds=len(rounds),
            n_eff=[b.n_eff for b in before],
            ece_before=[b.ece for b in before],
            ece_after=[a.ece for a in after],
            noise_floor=[a.noise_floor for a in after],
            status=list(statuses),
        ),
    )


def _check(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise output.UsageError(f"{option}: got {value!r}, expected {', '.join(known)}")


def _grid(text: str) -> list[float]:
    try:
        points = parse_grid(text)
    except ValueError as error:
        raise output.UsageError(f"--grid: {error}") from error
    return [float(t) for t in np.asarray(points)]
