"""The adapter's face: what an engine calls."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_adapter.contract import ContractError, EngineIdentity, Form
from serving_adapter.exploration import emits_each, exploration_seed, explores, explores_each, request_hash
from serving_adapter.intake import RoundIntake, Writes
from serving_adapter.mirror import EngineReport, ParameterMirror
from serving_adapter.parameter_watch import ParameterWatch
from serving_adapter.parameters import Parameters
from serving_adapter.ring import DEFAULT_ROUNDS, DEFAULT_STEPS, EventRing
from serving_adapter.ring_layout import RingShape
from serving_adapter.segment_labels import SegmentLabels

log = logging.getLogger(__name__)

_LARGEST = 2**32 - 1


class ServingAdapter:
    """Between an engine and the calibrator: rows go out, parameters come in, and nothing ever waits.

    Tensor parallelism. All ranks must take the same decision in the same step, or their collectives hang.
    Every rank makes an adapter; only rank 0 is given ``emit=True``, so that rows and reports exist once.
    Exploration needs no agreement: it is a hash. New parameters do: with ``commit_at_once=False`` every
    rank calls :meth:`stage` and hands the version to the engine's own control channel; when all ranks
    staged the same version, the engine calls :meth:`commit` with it on every rank at one and the same
    step (step-aligned with the forward pass, as a collective RPC is). A rank whose :meth:`stage` does not
    reach that version refuses by returning a lower one, and then nobody commits. A single-rank engine
    leaves ``commit_at_once`` on and only calls :meth:`current` between steps, which also reports the version
    as applied. Where ranks commit, the engine reports it itself, with :meth:`applied`, once all have.

    Not for several threads: one engine loop calls it.

    Parameters
    ----------
    identity
        What the confidences and step times belong to; documents of another fingerprint are refused.
    deployment, replica
        Names, 1 to 128 characters.
    ring
        Name of the shared memory, ``DSPARK_RING``; None for an adapter without any (identity, no rows).
        When the memory cannot be had, the adapter says why in ``disabled`` and the engine serves on.
    forms
        Forms of calibration that this engine can apply.
    segment_sets
        Whether this engine applies sets per segment and sampling bucket: it passes both, row by row, to
        :meth:`Parameters.survival`. Otherwise the pooled set serves every row. Reports and rows say which.
    emit
        Whether this rank writes rows and reports: rank 0 only.
    soft_labels
        Whether the ring has room for ``accept_probability``.
    explore
        Exploration probability until a document sets it.
    salt
        Goes into request hashes and exploration; the same on all ranks and replicas.
    signing_key
        HMAC key; when given, unsigned documents are refused.
    rounds_capacity, steps_capacity
        Rows that the ring holds.

    Raises
    ------
    ContractError
        Deployment or replica is no name.
    ValueError
        gamma or a capacity is out of range.
    """

    def __init__(
        self,
        identity: EngineIdentity,
        deployment: str,
        replica: str,
        ring: str | None = None,
        *,
        forms: tuple[Form, ...] = ("temperature", "affine"),
        segment_sets: bool = False,
        emit: bool = True,
        soft_labels: bool = False,
        explore: float = 0.0,
        salt: str = "",
        signing_key: bytes | None = None,
        commit_at_once: bool = True,
        rounds_capacity: int = DEFAULT_ROUNDS,
        steps_capacity: int = DEFAULT_STEPS,
    ) -> None:
        for name, value in (("deployment", deployment), ("replica", replica)):
            if not 1 <= len(value) <= 128 or any(ord(c) < 32 for c in value):
                raise ContractError(name, value, "1 to 128 printable characters")
        self.identity, self.deployment, self.replica, self.salt = identity, deployment, replica, salt
        self.gamma = identity.gamma
        self.rejected = 0
        self.last_rejection = ""
        self.disabled = ""
        self.ring: EventRing | None = None
        self._mirror: ParameterMirror | None = None
        shape = RingShape(identity.gamma, rounds_capacity, steps_capacity, soft_labels)
        if ring is not None:
            self._open(ring, shape, emit=emit, segment_sets=segment_sets)
        # Every rank needs the dictionary, for parameters go by it; only rank 0 has it in a ring.
        self._segments = SegmentLabels() if self.ring is None else self.ring.segments
        self._seed = exploration_seed(deployment, salt)
        self._watch = ParameterWatch(
            self._mirror,
            identity,
            deployment,
            forms,
            key=signing_key,
            commit_at_once=commit_at_once,
            reports=emit,
            explore=explore,
            labels=self._segments.names if segment_sets else None,
        )

    def _open(self, ring: str, shape: RingShape, *, emit: bool, segment_sets: bool) -> None:
        try:
            self._mirror = ParameterMirror.open(ring)
            if emit:
                self.ring = EventRing.create(
                    ring,
                    shape,
                    deployment=self.deployment,
                    replica=self.replica,
                    fingerprint=self.identity.fingerprint(),
                    segment_sets=segment_sets,
                )
                self._intake = RoundIntake(self.gamma, self.ring.layout.rounds)
        except OSError as error:
            self.disabled = str(error)
            log.error("adapter_disabled ring=%s reason=%r", ring, self.disabled)

    @property
    def boot(self) -> str:
        """Identifier of this engine start; empty without a ring."""
        return self.ring.boot if self.ring is not None else ""

    @property
    def report(self) -> EngineReport:
        """Versions applied and refused last."""
        return self._watch.report

    def observe(
        self,
        logits: ArrayLike,
        accepted: ArrayLike,
        *,
        request: ArrayLike,
        verified: ArrayLike | None = None,
        scheduled: ArrayLike | None = None,
        step: ArrayLike = 0,
        explore: ArrayLike | None = None,
        version: ArrayLike | None = None,
        segment: ArrayLike = "default",
        sampling: ArrayLike = 0.0,
        resolved: ArrayLike | None = None,
        resolved_accepted: ArrayLike | None = None,
        draft_stop: ArrayLike | None = None,
        accept_probability: ArrayLike | None = None,
        step_seconds: float | None = None,
        batch_tokens: int = 0,
        requests: int | None = None,
        context_tokens: float = 0.0,
        draft_seconds: float = 0.0,
        verify_seconds: float = 0.0,
        graph_tokens: int = 0,
        predicted_accepted: float = 0.0,
        predicted_seconds: float = 0.0,
    ) -> None:
        """Write the rounds of one engine step, and its step row when ``step_seconds`` is given.

        Never raises, never blocks. Malformed input writes nothing, adds one to ``rejected`` and leaves
        its reason in ``last_rejection``.

        Parameters
        ----------
        logits
            Raw confidence logits of all drafted positions, ``[rows, gamma]``, before any temperature.
        accepted, verified, scheduled, resolved, resolved_accepted, draft_stop
            Draft lengths ``[rows]`` without the anchor or the bonus token. Left out: everything was
            verified, scheduled is verified, resolved is verified, and no draft holds a stop token.
        request
            Hashes of the request ids, ``[rows]``, see :meth:`request_hash`.
        step
            Round number within the request.
        explore, version
            Exploration probability and parameter version the round was decided with; left out: those
            in force now. An engine that runs ahead of its results passes its own.
        segment
            Label of all rows, or indices ``[rows]`` from :meth:`segment`.
        sampling
            Sampling temperature, 0 for greedy.
        accept_probability
            ``[rows, gamma]``; ignored when the ring has no room for it.
        step_seconds, draft_seconds, verify_seconds, predicted_seconds
            Seconds.
        batch_tokens, requests, context_tokens, graph_tokens, predicted_accepted
            Size of the step; ``requests`` is the number of rows when left out.
        """
        ring = self.ring
        if ring is None:
            return
        try:
            z = self._intake.logits(logits)
            rows = z.shape[0]
            in_force = self._watch.in_force
            writes, given = self._intake.rows(
                z,
                accepted,
                request,
                step,
                verified,
                scheduled,
                resolved,
                resolved_accepted,
                draft_stop,
                accept_probability,
            )
            writes += self._intake.context(
                rows,
                in_force.version if version is None else version,
                in_force.share,
                in_force.explore if explore is None else explore,
                sampling,
                ring.label(segment) if type(segment) is str else segment,
                given,
                ring.labels,
            )
            step_row = None
            if step_seconds is not None:
                if not (
                    0 <= step_seconds < _LARGEST
                    and 0 <= context_tokens < _LARGEST
                    and 0 <= draft_seconds < _LARGEST
                    and 0 <= verify_seconds < _LARGEST
                    and 0 <= predicted_accepted < _LARGEST
                    and 0 <= predicted_seconds < _LARGEST
                ):
                    raise ContractError("steps", step_seconds, "finite numbers >= 0")
                step_row = (
                    batch_tokens,
                    rows if requests is None else requests,
                    context_tokens,
                    step_seconds,
                    draft_seconds,
                    verify_seconds,
                    graph_tokens,
                    predicted_accepted,
                    predicted_seconds,
                )
            if in_force.share < 1.0 and rows:
                rows, writes = self._within_share(ring, rows, writes, in_force.share)
            ring.append(rows, writes, step_row)
        except Exception as error:  # the engine serves on, whatever was handed in
            self._reject(ring, error)

    @staticmethod
    def _within_share(ring: EventRing, rows: int, writes: Writes, share: float) -> tuple[int, Writes]:
        kept = np.flatnonzero(emits_each(writes[1][1], share))
        ring.count_withheld(rows - kept.size)
        return kept.size, [(c, v[kept] if getattr(v, "ndim", 0) else v) for c, v in writes]

    def _reject(self, ring: EventRing, error: Exception) -> None:
        self.rejected += 1
        self.last_rejection = str(error) or type(error).__name__
        ring.count_rejected(self.rejected)

    def segment(self, label: str) -> int:
        """Index of a segment label for ``observe`` and parameters; beyond 64 labels, that of ``other``.

        Ranks ask for labels in the same order, as they serve the same requests.
        """
        return self._segments.enter(label) if self.ring is None else self.ring.label(label)

    def request_hash(self, request: str | bytes | int) -> int:
        """Salted 64-bit hash of a request id."""
        return request_hash(request, self.salt)

    def explore(self, request: int, step: int, probability: float | None = None) -> bool:
        """Whether a round is to be verified in full: alike on every rank, whatever was drafted.

        ``request`` is the hash of the request, ``step`` the round number within it. An engine under
        saturation passes a lower ``probability`` than the one in force (see
        :class:`serving_adapter.exploration_budget.ExplorationBudget`) and reports it in ``observe``.
        """
        wanted = self._watch.in_force.explore if probability is None else probability
        return explores(self._seed, request, step, wanted)

    def explore_each(
        self, request: ArrayLike, step: ArrayLike, probability: float | None = None
    ) -> NDArray[np.bool_]:
        """Decide for many rounds at once; arrays of shape ``[rows]``."""
        wanted = self._watch.in_force.explore if probability is None else probability
        return explores_each(self._seed, request, step, wanted)

    def current(self) -> Parameters:
        """Parameters in force; a new acceptable document comes into force here, between two steps.

        One load of shared memory when nothing changed. A document that fails any check is refused as a
        whole, with the reason in the report, and the old parameters stay. With ``commit_at_once`` what is
        returned here is reported as applied: the engine computes with it, or calls :meth:`refused`.
        """
        return self._watch.current()

    def stage(self) -> int:
        """Make the newest acceptable document ready on this rank and return its version."""
        return self._watch.stage()

    def commit(self, version: int) -> bool:
        """Put a staged version in force; False when this rank has not staged it."""
        return self._watch.commit(version)

    def applied(self, version: int) -> None:
        """Report that the engine computes with this version now: all ranks after their :meth:`commit`.

        With ``commit_at_once`` :meth:`current` has reported it already; to repeat it does no harm.
        """
        self._watch.applied(version)

    def refused(self, version: int, reason: str) -> None:
        """Report that the engine cannot take this version; the one before stays in force."""
        self._watch.refused(version, reason)

    def close(self) -> None:
        """Let go of the shared memory; unread rows stay for the sidecar."""
        if self.ring is not None:
            self.ring.close()
            self.ring = None
            del self._intake
        if self._mirror is not None:
            self._watch.detach()
            self._mirror.close()
            self._mirror = None
