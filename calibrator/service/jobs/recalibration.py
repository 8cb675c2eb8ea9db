"""What a run does: refresh its deployment, or adopt what the service that had it before has finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from calibrator.service.refresh import Hold, Refresher
from calibrator.store import deployments, refreshes
from calibrator.store.runs import Run
from calibrator.store.store import Store


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a run: the word of the refresh, why, and what it rests on."""

    outcome: str
    reasons: Sequence[str] = ()
    rows_used: int | None = None
    version: int | None = None


class Work(Protocol):
    """What runs do. ``hold`` fences every transaction that writes."""

    def __call__(self, run: Run, hold: Hold) -> Result:
        """Do it."""


class Recalibration:
    """Refreshes the deployment of a run, at most once per run however many services try.

    Parameters
    ----------
    store, refresher
        The parts of the service.
    """

    def __init__(self, store: Store, refresher: Refresher) -> None:
        self._store = store
        self._refresher = refresher

    def __call__(self, run: Run, hold: Hold) -> Result:
        """Refresh, or adopt.

        Raises
        ------
        KeyError
            The deployment is gone.
        StoreError, TransportError
            A store could not be reached, or the run was taken over.
        """
        with self._store.read() as connection:
            deployment = deployments.by_id(connection, run.deployment_id)
            earlier = None if run.refresh_id is None else refreshes.get(connection, run.refresh_id)
        if deployment is None:
            raise KeyError(f"deployment {run.deployment_id}")
        if earlier is not None and earlier.outcome not in (None, refreshes.ABANDONED, refreshes.FAILED):
            # The service before came as far as its verdict, and perhaps no further: nothing is fitted again.
            assert earlier.outcome is not None
            # Should engines not have seen its version yet, the service's loop shows it to them.
            return Result(earlier.outcome, earlier.reasons, earlier.evidence.get("rows"), earlier.version)
        outcome = self._refresher.refresh(deployment.name, dry_run=run.dry_run, hold=hold)
        return Result(
            outcome.outcome,
            outcome.reasons,
            outcome.proposal.rows if outcome.proposal is not None else None,
            outcome.document.version if outcome.document is not None and not run.dry_run else None,
        )
