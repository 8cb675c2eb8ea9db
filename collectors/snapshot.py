"""What the store knows of the deployments that a batch of messages speaks of, read at one go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sqlalchemy import Connection

from calibrator.store import boots, dead_letters, deployments, parameters, rollouts, sample
from calibrator.store.boots import Boot, BootKey
from calibrator.store.bottom_k import Stratum
from calibrator.store.dead_letters import DeadLetter
from calibrator.store.deployments import Deployment
from collectors.decoding import Decoded
from serving_adapter.contract import ParameterDocument

ParameterCache = dict[tuple[int, int], ParameterDocument]
"""(deployment id, version) -> document. Documents never change, so that a cache is never wrong."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The rollout under way. ``control`` is None where the identity is in force (version 0).

    ``since`` is when its stage began, in seconds since 1970.
    """

    rollout_id: int
    stage: str
    since: float
    control_version: int
    control: ParameterDocument | None
    candidate: ParameterDocument


@dataclass(slots=True)
class Known:
    """One deployment as stored; ``deployment`` is None when it is new."""

    deployment: Deployment | None = None
    segments: dict[str, int] = field(default_factory=dict)
    strata: dict[tuple[str, str], Stratum] = field(default_factory=dict)
    boots: dict[BootKey, Boot] = field(default_factory=dict)
    earlier_letters: dict[BootKey, list[DeadLetter]] = field(default_factory=dict)
    parameters: dict[int, ParameterDocument] = field(default_factory=dict)
    trial: Trial | None = None


@dataclass(slots=True)
class Snapshot:
    """Everything a plan is made from, and how many deployments there are."""

    known: dict[str, Known]
    deployments: int


def read(connection: Connection, decoded: Iterable[Decoded], cache: ParameterCache) -> Snapshot:
    """Read what is known of the deployments, boots and versions in these messages."""
    keys: dict[str, set[BootKey]] = {}
    versions: dict[str, set[int]] = {}
    for each in decoded:
        of = each.batch or each.rows
        if of is None:
            continue
        keys.setdefault(of.deployment, set()).add((of.replica, of.boot))
        if each.batch is not None and each.batch.rounds is not None:
            column = each.batch.rounds.version
            found = {int(column[0])} if (column == column[0]).all() else set(column.tolist())
            versions.setdefault(of.deployment, set()).update(found)
    existing = deployments.named(connection, keys)
    snapshot = Snapshot({}, deployments.count(connection))
    for name, wanted in keys.items():
        known = snapshot.known[name] = Known(existing.get(name))
        if known.deployment is not None:
            own = known.deployment.id
            known.segments = deployments.segments(connection, own)
            known.strata = sample.strata(connection, own)
            known.boots = boots.load(connection, own, wanted)
            known.parameters = _documents(connection, own, versions.get(name, set()) - {0}, cache)
            known.trial = _trial(connection, own, cache)
        for key in wanted - known.boots.keys():
            known.earlier_letters[key] = dead_letters.of_boot(connection, name, key)
    return snapshot


def _trial(connection: Connection, deployment_id: int, cache: ParameterCache) -> Trial | None:
    rollout = rollouts.running(connection, deployment_id)
    if rollout is None:
        return None
    found = _documents(connection, deployment_id, {rollout.version, rollout.control_version} - {0}, cache)
    candidate, control = found.get(rollout.version), found.get(rollout.control_version)
    if candidate is None or (control is None and rollout.control_version):
        return None
    return Trial(rollout.id, rollout.stage, rollout.stage_since, rollout.control_version, control, candidate)


def _documents(
    connection: Connection, deployment_id: int, versions: set[int], cache: ParameterCache
) -> dict[int, ParameterDocument]:
    documents = {}
    for version in versions:
        document = cache.get((deployment_id, version))
        if document is None:
            document = parameters.get(connection, deployment_id, version)
            if document is None:
                continue
            if len(cache) >= 1_000:
                cache.clear()
            cache[deployment_id, version] = document
        documents[version] = document
    return documents
