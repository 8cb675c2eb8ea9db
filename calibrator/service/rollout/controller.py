"""The controller: looks at every running rollout, again and again, and does what its evidence says.

All state is in the database. Whoever holds the lease of a deployment looks; when its service dies, another
one goes on from what is stored. A look that is repeated changes nothing.
"""

from __future__ import annotations

import dataclasses
import logging
import socket
import uuid
from collections.abc import Mapping
from typing import Any

from calibrator.core.arms import ArmSums
from calibrator.core.canary import Decision, judge_canary, judge_shadow
from calibrator.service.deployment_settings import RolloutSettings
from calibrator.service.publisher import Publisher
from calibrator.service.rollout.beginning import rules_of, settings_of
from calibrator.service.rollout.operations import Rollouts
from calibrator.service.rollout.replicas import Sides, sides, splitting_share
from calibrator.store import arm_sums, leases, parameters, rollouts
from calibrator.store.deployments import Deployment
from calibrator.store.errors import ConflictError
from calibrator.store.rollouts import ALL, CANARY, SHADOW, Rollout
from calibrator.store.store import Store
from serving_adapter.contract import encode_document
from serving_adapter.ports import (
    Candidate,
    Clock,
    ParameterStore,
    ReplicaReport,
    VersionConflictError,
)
from serving_adapter.step_cost import StepCost

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
"""A look takes milliseconds; a controller that died in one is waited for this long."""
ACTOR = "controller"
UNDECIDED = "undecided"
ASKED_SHARE = "asked_share"
"""Part of the evidence where not the share that was asked for is in force, but the nearest possible."""


class RolloutController:
    """Moves rollouts on by evidence. :meth:`step` is called over and over for every deployment.

    Parameters
    ----------
    store, parameter_store, publisher, clock
        Where rollouts and their evidence are, and where candidates go.
    lease_seconds
        How long a controller that died in a look is waited for.
    """

    def __init__(
        self,
        store: Store,
        parameter_store: ParameterStore,
        publisher: Publisher,
        clock: Clock,
        *,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._store = store
        self._parameter_store = parameter_store
        self._publisher = publisher
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._rollouts = Rollouts(store, parameter_store, publisher, clock)
        self._holder = f"{socket.gethostname()}/{uuid.uuid4().hex[:12]}"

    def step(self, deployment: Deployment) -> None:
        """Look once at what is under way for a deployment.

        Raises
        ------
        StoreError, TransportError
            A store cannot be reached; the next look goes on.
        """
        # Read first: a candidate is offered after its rollout was written, so one without is a left-over.
        offered = self._parameter_store.candidate(deployment.name)
        with self._store.read() as connection:
            rollout = rollouts.running(connection, deployment.id)
        if rollout is None or rollout.stage == SHADOW:
            if offered is not None:
                self._parameter_store.withdraw(deployment.name)
            if rollout is None:
                return
        lease = f"rollout:{deployment.id}"  # a name may be longer than that of a lease
        with self._store.write() as connection:
            held = leases.acquire(connection, lease, self._holder, self._lease_seconds)
        if held is None:
            return
        try:
            self._look(deployment, rollout)
        except ConflictError as error:
            log.info("rollout_moved deployment=%s reason=%r", deployment.name, str(error))
        finally:
            with self._store.write() as connection:
                leases.release(connection, lease, self._holder)

    def _look(self, deployment: Deployment, rollout: Rollout) -> None:
        now = self._clock.now()
        settings = settings_of(rollout)
        with self._store.read() as connection:
            newest = parameters.in_force(connection, deployment.id)
            sums = arm_sums.load(connection, rollout.id)
        version = newest.document.version if newest else 0
        if version != rollout.control_version:
            self._give_up(rollout, f"superseded: version {version} came into force")
        elif now - rollout.started_at > settings.max_seconds:
            told = rollout.evidence.get("decision", {}).get("reason", "nothing was seen")
            self._give_up(rollout, f"{UNDECIDED} after {settings.max_seconds:g} s: {told}")
        elif rollout.stage == SHADOW:
            self._shadow(deployment, rollout, sums)
        else:
            self._canary(deployment, rollout, sums, settings, now)

    def _shadow(self, deployment: Deployment, rollout: Rollout, sums: dict[str, ArmSums]) -> None:
        """Score the candidate; on to a canary where there can be one, else to all."""
        decision = judge_shadow(sums.get(SHADOW, ArmSums.zeros()), rules_of(rollout))
        reports = self._parameter_store.reports(deployment.name)
        seen = sides(deployment.name, rollout, reports)
        decision = self._held(deployment, decision)
        if decision.action == "promote" and not seen.live:
            decision = dataclasses.replace(decision, action="wait", reason="no replica has reported")
        shadow = {"rounds": int(sums.get(SHADOW, ArmSums.zeros()).total("rounds"))}
        shadow |= dataclasses.asdict(decision.measures[0])
        self._note(rollout, {"shadow": shadow, **_told(decision, seen)})
        if decision.action == "abort":
            self._give_up(rollout, f"shadow: {decision.reason}")
        elif decision.action == "promote" and seen.live == 1:
            reason = f"shadow: {decision.reason}; one live replica, so no canary is possible"
            self._rollouts.advance(rollout, ALL, actor=ACTOR, reason=reason)
        elif decision.action == "promote":
            self._rollouts.advance(rollout, CANARY, actor=ACTOR, reason=f"shadow: {decision.reason}")

    def _canary(
        self,
        deployment: Deployment,
        rollout: Rollout,
        sums: dict[str, ArmSums],
        settings: RolloutSettings,
        now: float,
    ) -> None:
        """Keep the candidate offered, and compare."""
        reports = self._parameter_store.reports(deployment.name)
        seen = sides(deployment.name, rollout, reports)
        if seen.live >= 2 and not (seen.canaries and seen.controls):
            rollout = self._with_share(deployment, rollout, reports, now)
            seen = sides(deployment.name, rollout, reports)
        decision = judge_canary(
            sums.get("control", ArmSums.zeros()), sums.get("canary", ArmSums.zeros()), rules_of(rollout)
        )
        decision = self._held(deployment, decision)
        # Remembered: canary replicas that restart report nothing for a while.
        taken_up = bool(seen.applied or rollout.evidence.get("taken_up"))
        if decision.action == "promote" and not seen.applied:
            decision = dataclasses.replace(
                decision, action="wait", reason="no replica reports that it runs the candidate"
            )
        canary = {
            "canary": [dataclasses.asdict(measure) for measure in decision.measures],
            "curve": self._has_curve(rollout),
        }
        self._note(rollout, {**canary, **_told(decision, seen), "taken_up": taken_up})
        late = now - rollout.stage_since > settings.wait_seconds
        if seen.refused:
            replica, reason = next(iter(seen.refused.items()))
            self._give_up(rollout, f"refused by {replica}: {reason}")
        elif decision.action == "abort":
            self._give_up(rollout, decision.reason)
        elif decision.action == "promote":
            self._rollouts.advance(rollout, ALL, actor=ACTOR, reason=decision.reason)
        elif seen.live < 2 and late:
            self._alone(rollout, seen, now)
        elif late and not taken_up:
            self._give_up(rollout, f"no replica took it up within {settings.wait_seconds:g} s")
        elif seen.live >= 2:
            self._offer(deployment, rollout)

    def _has_curve(self, rollout: Rollout) -> bool:
        """Whether steps of both arms are related to a curve; else plain seconds are compared."""
        with self._store.read() as connection:
            documents = [
                parameters.get(connection, rollout.deployment_id, version)
                for version in (rollout.control_version, rollout.version)
            ]
        return any(each is not None and StepCost.from_curve(each.cost) is not None for each in documents)

    def _alone(self, rollout: Rollout, seen: Sides, now: float) -> None:
        """There is nothing to compare with: back to scoring, or, where it runs already, away with it."""
        if seen.applied:
            self._give_up(rollout, "the only live replica runs the candidate: nothing to compare with")
            return
        reason = f"{seen.live} live replica: no canary is possible, scored without being applied instead"
        with self._store.write() as connection:
            rollouts.move(connection, rollout, SHADOW, rollouts.RUNNING, now, reason, ACTOR)
            parameters.set_state(connection, rollout.deployment_id, rollout.version, parameters.SHADOW)

    def _offer(self, deployment: Deployment, rollout: Rollout) -> None:
        """See to it that the candidate is in the parameter store, with its share."""
        with self._store.read() as connection:
            document = parameters.get(connection, deployment.id, rollout.version)
        assert document is not None
        sealed = self._publisher.sealed_anew(document)
        offered = self._parameter_store.candidate(deployment.name)
        if offered == Candidate(encode_document(sealed), rollout.share):
            return
        try:
            self._parameter_store.offer(sealed, rollout.share)
        except VersionConflictError as error:
            log.warning("candidate_not_offered %s", error)
            return
        log.info(
            "candidate_offered deployment=%s version=%d share=%g",
            deployment.name, rollout.version, rollout.share,
        )  # fmt: skip

    def _with_share(
        self, deployment: Deployment, rollout: Rollout, reports: Mapping[str, ReplicaReport], now: float
    ) -> Rollout:
        """Take the nearest share that leaves live replicas on both sides, and remember the one asked for."""
        asked = rollout.evidence.get(ASKED_SHARE, rollout.share)
        share = splitting_share(deployment.name, reports, asked)
        moved = dataclasses.replace(rollout, share=share, evidence={**rollout.evidence, ASKED_SHARE: asked})
        seen = sides(deployment.name, moved, reports)
        reason = (
            f"{asked:.3g} of the replicas was asked for, which is none or all of the {seen.live} live ones: "
            f"{len(seen.canaries)} of them, the nearest possible, takes part"
        )
        with self._store.write() as connection:
            rollouts.set_share(connection, rollout.id, share)
            rollouts.set_evidence(connection, rollout.id, moved.evidence)
            rollouts.note(connection, rollout.id, now, rollout.stage, reason, ACTOR)
        return moved

    @staticmethod
    def _held(deployment: Deployment, decision: Decision) -> Decision:
        """What runs in a frozen deployment stays; only a candidate that does harm still goes."""
        if deployment.frozen and decision.action == "promote":
            return dataclasses.replace(decision, action="wait", reason="the deployment is frozen")
        return decision

    def _give_up(self, rollout: Rollout, reason: str) -> None:
        self._rollouts.give_up(rollout, actor=ACTOR, reason=reason)

    def _note(self, rollout: Rollout, found: dict[str, Any]) -> None:
        """Store the evidence if it says anything new."""
        evidence = {**rollout.evidence, **found}
        if evidence != rollout.evidence:
            with self._store.write() as connection:
                rollouts.set_evidence(connection, rollout.id, evidence)


def _told(decision: Decision, seen: Sides) -> dict[str, Any]:
    return {
        "decision": {"action": decision.action, "reason": decision.reason},
        "replicas": {
            "canary": len(seen.canaries),
            "control": len(seen.controls),
            "applied": len(seen.applied),
        },
    }
