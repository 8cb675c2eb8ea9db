"""The service side of a refresh: rows in SQL, documents in the parameter store, versions that only rise."""

import json
import threading

import numpy as np
import pytest
import redis

from calibrator.core.candidate import ProposalOptions
from calibrator.service.export import export_version
from calibrator.service.loop import CalibratorLoop
from calibrator.service.publisher import ADOPTED, Publisher
from calibrator.service.refresh import Refresher
from calibrator.store import deployments, leases, parameters, refreshes
from serving_adapter.contract import Steps, decode_document, seal
from serving_adapter.ports import TransportError
from tests.recorded import recorded
from tests.refresh_support import Place

pytest_plugins = ["tests.refresh_fixtures"]


def test_a_better_set_is_published_as_the_next_version_with_its_evidence(place: Place) -> None:
    place.ingest(recorded("typical").take(slice(0, 6000)))
    place.report()
    outcome = place.refresher.refresh("chat")
    assert outcome.outcome == "published"
    payload = place.parameter_store.read("chat")
    assert payload is not None
    document = decode_document(payload)
    assert (document.version, document.previous, document.form) == (1, 0, "affine")
    assert document.fingerprint == "f"
    assert document.evidence is not None
    assert document.evidence.rounds == 6000
    assert np.mean(document.evidence.ece_after) < 0.5 * np.mean(document.evidence.ece_before)
    assert document.evidence.reasons[0].startswith("held-out rows: ")


def test_what_temperatures_alone_would_say_of_a_version_is_fitted_with_it(place: Place) -> None:
    place.ingest(recorded("typical").take(slice(0, 6000)))
    place.report()
    place.refresher.refresh("chat")
    with place.store.read() as connection:
        known = deployments.get(connection, "chat")
        assert known is not None
        (refresh,) = refreshes.recent(connection, known.id)
        kept = parameters.temperature_export(connection, known.id, 1)
    assert kept == refresh.evidence["temperature_export"]
    assert "those stored at its publication" in kept["dataset"]
    place.ingest(recorded("hard").take(slice(0, 2000)))
    exported = export_version(place.store, "chat", 1, "sglang", now=place.clock.now())
    assert json.loads(exported.content)["temperatures"] == kept["temperatures"]


def test_the_same_rows_again_publish_nothing_and_the_reason_is_kept(place: Place) -> None:
    place.ingest(recorded("typical").take(slice(0, 6000)))
    place.report()
    place.refresher.refresh("chat")
    again = place.refresher.refresh("chat")
    assert again.outcome == "unchanged"
    assert place.served() == 1
    with place.store.read() as connection:
        known = deployments.get(connection, "chat")
        assert known is not None
        history = refreshes.recent(connection, known.id)
    assert [r.outcome for r in history] == ["unchanged", "published"]
    assert any("no gain" in reason for reason in history[0].reasons)
    assert history[1].version == 1


def test_forms_are_what_every_live_replica_can_apply(place: Place) -> None:
    place.ingest(recorded("hard").take(slice(0, 8000)))
    place.report()
    place.report(forms=("temperature",), replica="pod-1")
    outcome = place.refresher.refresh("chat")
    assert outcome.proposal is not None
    assert outcome.proposal.form_judged == "temperature"


def test_before_any_replica_reported_only_temperatures_are_published(place: Place) -> None:
    place.ingest(recorded("hard").take(slice(0, 8000)))
    outcome = place.refresher.refresh("chat")
    assert outcome.proposal is not None
    assert outcome.proposal.form_judged == "temperature"


def test_a_new_fingerprint_starts_again_from_the_identity(place: Place) -> None:
    place.ingest(recorded("typical").take(slice(0, 6000)))
    place.report()
    place.refresher.refresh("chat")
    place.clock.advance(3600.0)
    place.ingest(recorded("hard").take(slice(0, 6000)), fingerprint="another drafter", boot="b1")
    outcome = place.refresher.refresh("chat")
    assert outcome.document is not None
    assert (outcome.document.version, outcome.document.fingerprint) == (2, "another drafter")
    assert outcome.proposal is not None
    assert outcome.proposal.rows == 6000
    # Before is the identity: version 1 belongs to another engine.
    assert [r.ece for r in outcome.proposal.before] == [r.ece for r in outcome.proposal.raw]


def test_two_fingerprints_at_once_publish_nothing(place: Place) -> None:
    place.ingest(recorded("typical").take(slice(0, 3000)))
    place.ingest(recorded("hard").take(slice(0, 3000)), fingerprint="another drafter", boot="b1")
    place.report()
    outcome = place.refresher.refresh("chat")
    assert outcome.outcome == "unchanged"
    assert outcome.reasons == ("mixed_provenance: replicas run fingerprints 'another drafter', 'f'",)


def test_a_frozen_deployment_is_left_alone(place: Place) -> None:
    place.ingest(recorded("typical").take(slice(0, 2000)))
    with place.store.write() as connection:
        known = deployments.get(connection, "chat")
        assert known is not None
        deployments.set_frozen(connection, known.id, True)
    assert place.refresher.refresh("chat").outcome == "frozen"


def test_an_unknown_deployment_is_named(place: Place) -> None:
    with pytest.raises(KeyError, match="nobody"):
        place.refresher.refresh("nobody")


def test_two_services_do_not_refresh_at_once(place: Place) -> None:
    place.ingest(recorded("typical").take(slice(0, 3000)))
    with place.store.write() as connection:
        assert leases.acquire(connection, "refresh:chat", "somebody else", 60.0)
    assert place.refresher.refresh("chat").outcome == "busy"


def test_a_version_that_engines_never_saw_is_published_after_a_crash(place: Place) -> None:
    place.ingest(recorded("typical").take(slice(0, 6000)))
    place.report()
    document = place.refresher.refresh("chat").document
    assert document is not None
    # As after a crash between the commit and the publication of version 2.
    second = seal(dataclasses_replace(document, version=2, previous=1))
    with place.store.write() as connection:
        known = deployments.get(connection, "chat")
        assert known is not None
        parameters.append(connection, known.id, second, place.clock.now(), "published")
    assert place.served() == 1
    place.publisher.reconcile("chat")
    assert place.served() == 2


def test_an_emptied_parameter_store_is_filled_with_the_version_in_force(place: Place) -> None:
    place.ingest(recorded("typical").take(slice(0, 6000)))
    place.report()
    place.refresher.refresh("chat")
    redis.Redis.from_url(place.parameter_store.url).flushall()
    assert place.served() == 0
    place.publisher.reconcile("chat")
    assert place.served() == 1


def test_a_database_restored_from_a_backup_adopts_what_engines_run(place: Place, tmp_path) -> None:
    place.ingest(recorded("typical").take(slice(0, 6000)))
    place.report()
    document = place.refresher.refresh("chat").document
    assert document is not None
    place.parameter_store.publish(seal(dataclasses_replace(document, version=7, previous=1)))
    assert place.publisher.reconcile("chat") == 7
    with place.store.read() as connection:
        known = deployments.get(connection, "chat")
        assert known is not None
        latest = parameters.latest(connection, known.id)
        assert place.publisher.next_version(known) == 8
    assert latest is not None
    assert (latest.document.version, latest.state) == (7, ADOPTED)


def test_a_signed_document_is_signed_anew_when_it_is_republished(place: Place) -> None:
    key = b"secret"
    signing = Publisher(place.store, place.parameter_store, place.clock, key)
    refresher = Refresher(
        place.store, place.parameter_store, signing, place.clock, ProposalOptions(resamples=100)
    )
    place.ingest(recorded("typical").take(slice(0, 6000)))
    place.report()
    refresher.refresh("chat")
    redis.Redis.from_url(place.parameter_store.url).flushall()
    Publisher(place.store, place.parameter_store, place.clock, b"rotated").reconcile("chat")
    payload = place.parameter_store.read("chat")
    assert payload is not None
    assert decode_document(payload, b"rotated").version == 1


def test_the_loop_keeps_the_stores_in_step_and_gives_every_deployment_its_turn(place: Place) -> None:
    place.ingest(recorded("typical").take(slice(0, 6000)))
    place.ingest(recorded("typical").take(slice(0, 1000)), deployment="other", boot="b9")
    place.report()
    place.refresher.refresh("chat")
    redis.Redis.from_url(place.parameter_store.url).flushall()
    seen: list[str] = []

    def fails(deployment: deployments.Deployment) -> None:
        if deployment.name == "chat":
            raise ZeroDivisionError

    loop = CalibratorLoop(
        place.store,
        place.publisher,
        place.clock,
        steps=[fails, lambda deployment: seen.append(deployment.name)],
    )
    loop.tick()
    assert place.served() == 1
    assert seen == ["chat", "other"]
    assert loop.failures == 1


def test_the_loop_survives_stores_that_go_away(place: Place) -> None:
    place.ingest(recorded("typical").take(slice(0, 1000)))

    class Gone:
        def read(self, deployment: str) -> bytes | None:
            raise TransportError("gone")

    broken = Publisher(place.store, Gone(), place.clock)  # type: ignore[arg-type]
    loop = CalibratorLoop(place.store, broken, place.clock)
    loop.tick()
    assert loop.failures == 1
    stop = threading.Event()
    stop.set()
    loop.run(stop)


def measured_steps(speed: float = 1.0, sizes: tuple[int, ...] = (8, 16, 32, 64, 128, 256)) -> Steps:
    """Steps of a machine that takes 30 ms and 1 ms per token."""
    tokens = np.repeat(sizes, 40)
    noise = np.random.default_rng(0).normal(1.0, 0.01, tokens.size)
    return Steps.build(
        step_seconds=speed * (0.03 + 0.001 * tokens) * noise,
        batch_tokens=tokens,
        requests=np.full(tokens.size, 8),
    )


def test_a_measured_curve_is_published_with_the_parameters(place: Place) -> None:
    place.ingest(recorded("typical").take(slice(0, 6000)), steps=measured_steps())
    place.report()
    document = place.refresher.refresh("chat").document
    assert document is not None
    assert document.cost is not None
    known = np.interp(100, document.cost.batch_tokens, document.cost.seconds)
    assert known == pytest.approx(0.130, rel=0.03)
    with place.store.read() as connection:
        chat = deployments.get(connection, "chat")
        assert chat is not None
        evidence = refreshes.recent(connection, chat.id)[0].evidence
    assert {v["policy"] for v in evidence["value"]} >= {"in force", "candidate", "verify all", "verify none"}
    assert evidence["curve"]["status"]


def test_a_machine_that_became_faster_is_a_new_version_even_if_calibration_stays(place: Place) -> None:
    place.ingest(recorded("typical").take(slice(0, 6000)), steps=measured_steps())
    place.report()
    first = place.refresher.refresh("chat").document
    assert first is not None
    assert place.refresher.refresh("chat").outcome == "unchanged"
    place.clock.advance(14 * 6 * 3600.0)  # the slow steps are forgotten, the calibration is not in doubt
    place.ingest(recorded("typical").take(slice(0, 3000)), steps=measured_steps(speed=0.7))
    place.report()
    second = place.refresher.refresh("chat").document
    assert second is not None
    assert second.cost is not None
    assert np.interp(100, second.cost.batch_tokens, second.cost.seconds) == pytest.approx(0.091, rel=0.05)
    # What the version is for comes first, and that the calibration is not it.
    assert second.evidence.reasons[0].startswith(  # type: ignore[union-attr]
        "curve: measured anew; calibration unchanged: no gain on held-out rows"
    )


def test_a_curve_of_one_size_is_no_knowledge_and_the_reason_is_kept(place: Place) -> None:
    place.ingest(recorded("typical").take(slice(0, 6000)), steps=measured_steps(sizes=(64,)))
    place.report()
    outcome = place.refresher.refresh("chat")
    assert outcome.document is not None
    assert outcome.document.cost is None
    assert any(reason.startswith("curve: ") for reason in outcome.reasons)


def dataclasses_replace(document, **changes):
    import msgspec

    return msgspec.structs.replace(document, digest="", signature="", **changes)


def test_what_a_service_that_died_left_open_is_closed_by_the_next(place: Place) -> None:
    place.ingest(recorded("typical").take(slice(0, 6000)))
    with place.store.write() as connection:
        known = deployments.get(connection, "chat")
        assert known is not None
        refreshes.start(connection, known.id, place.clock.now())
    place.clock.advance(300.0)
    place.refresher.refresh("chat")
    with place.store.read() as connection:
        died = refreshes.recent(connection, known.id)[1]
    assert (died.outcome, died.finished) == ("abandoned", place.clock.now())
    assert died.reasons == ["the service that began it did not finish it"]


def test_the_evidence_holds_figures_of_record_and_what_became_of_every_version(place: Place) -> None:
    rows = recorded("typical")
    place.ingest(rows.take(slice(0, 6000)))
    place.report()
    assert place.refresher.refresh("chat").outcome == "published"
    place.clock.advance(60.0)
    place.ingest(rows.take(slice(6000, 12000)))
    place.refresher.refresh("chat")
    with place.store.read() as connection:
        known = deployments.get(connection, "chat")
        assert known is not None
        later, first = (r.evidence for r in refreshes.recent(connection, known.id))
    assert first["prequential"] == []
    assert {name: len(of) for name, of in later["record"].items()} == {
        "raw": 7,
        "in_force": 7,
        "candidate": 7,
    }
    assert later["record"]["in_force"][0]["ece"] < later["record"]["raw"][0]["ece"]
    (score,) = later["prequential"]
    # Judged on the rows that came after its publication, and on no other.
    assert (score["version"], score["rows"]) == (1, 6000)
    assert score["against_raw"]["better"]
    assert score["against_previous"] is None
    assert score["ece"] < 0.5 * np.mean([f["plain_ece"] for f in later["record"]["raw"]])
