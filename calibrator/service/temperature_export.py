"""What temperatures alone say of a version that holds more: fitted once, and kept with the version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from calibrator.core.candidate import ProposalOptions, build_candidate
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.report import position_report
from serving_adapter.contract import Evidence, ParameterDocument, Rounds


class ExportRefusedError(Exception):
    """The version cannot be said in that format; the message says why."""


class TemperatureExport(msgspec.Struct, frozen=True):
    """A refit in the temperature form.

    Parameters
    ----------
    temperatures
        One per position.
    evidence
        Of this fit.
    dataset
        Which rows it was fitted to, for the file.
    notes
        What a reader must know.
    """

    temperatures: list[float]
    evidence: Evidence
    dataset: str
    notes: list[str]

    @classmethod
    def fit(
        cls,
        document: ParameterDocument,
        rounds: Rounds,
        weights: NDArray[np.float64],
        options: ProposalOptions | None = None,
        *,
        at: float,
        when: str,
    ) -> Self:
        """Fit it; ``at`` (seconds since 1970) and ``when`` say which rows these are.

        Raises
        ------
        ExportRefusedError
            See :func:`refit_as_temperatures`.
        """
        refitted, notes = refit_as_temperatures(document, rounds, weights, options)
        stamp = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        assert refitted.evidence is not None
        return cls(
            temperatures=refitted.temperatures,
            evidence=refitted.evidence,
            dataset=f"temperatures refitted from {len(rounds)} rows, those stored at its {when}, {stamp}",
            notes=[f"{notes[0]} (those stored at its {when}, {stamp})", *notes[1:]],
        )

    def document(self, of: ParameterDocument) -> ParameterDocument:
        """Return that version as this fit says it; not sealed, for it is no version."""
        return _as_temperatures(of, self.temperatures, self.evidence)

    def to_builtins(self) -> dict[str, Any]:
        """Plain JSON; undefined figures are null."""
        built: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return built

    @classmethod
    def from_builtins(cls, data: dict[str, Any]) -> Self:
        """Rebuild from :meth:`to_builtins`."""
        return msgspec.convert(data, cls)


def refit_as_temperatures(
    document: ParameterDocument,
    rounds: Rounds,
    weights: NDArray[np.float64],
    options: ProposalOptions | None = None,
) -> tuple[ParameterDocument, Sequence[str]]:
    """Fit the temperature form to the rows; positions without evidence keep the identity.

    Returns
    -------
    The document with that fit and its own evidence (not sealed: it is no version), and notes.

    Raises
    ------
    ExportRefusedError
        No rows, or no position that the rows say enough about.
    """
    refused = f"version {document.version} is affine, and temperatures alone would say something else"
    if not len(rounds):
        raise ExportRefusedError(f"{refused}: no rows are stored to refit from")
    options = replace(options or ProposalOptions(), max_log_step=np.inf)
    weights = weights / weights.mean()
    identity = ParameterSet.identity(rounds.gamma)
    candidate = build_candidate("temperature", rounds, weights, identity, options)
    kept = [f"position {g.position}: {reason}" for g in candidate.gates for reason in g.reasons]
    if not candidate.changed:
        raise ExportRefusedError(f"{refused}: no position can be refitted ({kept[0]})")

    def report(chosen: ParameterSet) -> list[float | None]:
        survival = chosen.survival(rounds)
        figures = position_report(
            survival, rounds, options.bins, options.end_of_sequence, options.clip, weights
        )
        return [figure.ece for figure in figures]

    chosen = candidate.parameters
    evidence = Evidence(
        window="refitted from the weighted sample",
        rounds=len(rounds),
        n_eff=[g.n_eff for g in candidate.gates],
        ece_before=report(identity),
        ece_after=report(chosen),
        status=[g.status for g in candidate.gates],
    )
    refitted = _as_temperatures(document, chosen.temperatures.tolist(), evidence)
    note = f"refitted in the temperature form from {len(rounds)} rows, for the version is affine"
    return refitted, [note, *(f"{reason}, so it keeps temperature 1" for reason in kept)]


def _as_temperatures(
    document: ParameterDocument, temperatures: list[float], evidence: Evidence
) -> ParameterDocument:
    return msgspec.structs.replace(
        document,
        form="temperature",
        temperatures=temperatures,
        offsets=[0.0] * len(temperatures),
        segments=[],
        evidence=evidence,
        digest="",
        signature="",
    )
