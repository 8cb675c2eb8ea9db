"""A version as a file: exactly the document, or what a temperature file can say, fitted for that."""

import json

import numpy as np
import pytest

from calibrator.core.parameter_set import ParameterSet
from calibrator.core.report import mean_ece, position_report
from calibrator.service.export import EXPORT_FORMATS, export_version
from calibrator.service.temperature_export import ExportRefusedError
from calibrator.store import Store, deployments, parameters
from collectors.options import PipelineOptions
from collectors.pipeline import IngestPipeline
from serving_adapter.clock import ManualClock
from serving_adapter.contract import CostCurve, ParameterDocument, decode_document, seal
from tests.ingest_support import NOW, cut
from tests.recorded import recorded
from tests.refresh_support import NoDeadLetters
from tests.test_contract_segments import entry

ROUNDS = recorded("hard").take(slice(0, 6000))


@pytest.fixture
def store(tmp_path):
    opened = Store(f"sqlite:///{tmp_path / 'store.db'}")
    opened.migrate()
    yield opened
    opened.close()


def publish(store, *, rows=ROUNDS, **changes):
    gamma = ROUNDS.gamma
    body = {
        "deployment": "chat/eu-1",
        "fingerprint": "f",
        "version": 3,
        "gamma": gamma,
        "form": "affine",
        "temperatures": [1.25] * gamma,
        "offsets": [0.5] * gamma,
        "created_at": "2026-11-29T10:00:00Z",
    }
    document = seal(ParameterDocument(**(body | changes)))
    with store.write() as connection:
        known = deployments.register(connection, "chat/eu-1", gamma, "f", NOW)
        parameters.append(connection, known.id, document, NOW, "published")
    if rows is None:
        return document
    IngestPipeline(store, NoDeadLetters(), ManualClock(NOW), PipelineOptions()).ingest(
        cut(rows, 1000, deployment="chat/eu-1", fingerprint="f")
    )
    return document


def export(store, file_format):
    return export_version(store, "chat/eu-1", 3, file_format, now=NOW)


def test_the_document_is_what_replicas_read(store):
    document = publish(store)
    exported = export(store, "document")
    assert decode_document(exported.content) == document
    assert (exported.media_type, exported.filename) == ("application/json", "chat-eu-1-v3.json")


@pytest.mark.parametrize(
    ("file_format", "key"), [("sglang", "temperatures"), ("tensorrt", "sts_temperatures")]
)
def test_temperatures_of_an_affine_set_are_fitted_anew_and_not_cut_off(store, file_format, key):
    publish(store)
    exported = export(store, file_format)
    temperatures = np.array(json.loads(exported.content)[key])
    assert not np.allclose(temperatures, 1.25)

    def ece(t):
        chosen = ParameterSet("temperature", t, np.zeros(ROUNDS.gamma))
        return mean_ece(position_report(chosen.survival(ROUNDS), ROUNDS, 15))

    assert ece(temperatures) < ece(np.full(ROUNDS.gamma, 1.25))
    assert ece(temperatures) < ece(np.ones(ROUNDS.gamma))
    assert "refitted" in exported.notes[0]
    assert json.loads(exported.content)["num_samples"] == 6000


def test_a_version_gives_the_same_file_whatever_rows_come_later(store):
    publish(store)
    first = export(store, "sglang")
    assert "6000 rows, those stored at its first export" in json.loads(first.content)["dataset"]
    later = cut(ROUNDS.take(slice(3000, 6000)), 1000, deployment="chat/eu-1", fingerprint="f", boot="later")
    clock = ManualClock(NOW + 3600)
    IngestPipeline(store, NoDeadLetters(), clock, PipelineOptions()).ingest(later)
    assert export_version(store, "chat/eu-1", 3, "sglang", now=NOW + 3600) == first
    tensorrt = json.loads(export_version(store, "chat/eu-1", 3, "tensorrt", now=NOW + 7200).content)
    assert tensorrt["sts_temperatures"] == json.loads(first.content)["temperatures"]


def test_a_temperature_set_is_exported_as_it_is(store):
    gamma = ROUNDS.gamma
    publish(store, form="temperature", offsets=[0.0] * gamma, rows=None)
    exported = export(store, "sglang")
    assert json.loads(exported.content)["temperatures"] == [1.25] * gamma
    assert exported.notes == ()


def test_sets_per_segment_are_left_out_and_the_reader_is_told(store):
    gamma = ROUNDS.gamma
    publish(store, form="temperature", offsets=[0.0] * gamma, segments=[entry(gamma=gamma)], rows=None)
    assert "1 sets per segment" in export(store, "sglang").notes[0]


def test_without_rows_there_is_no_refit_and_the_reason_is_said(store):
    publish(store, rows=None)
    with pytest.raises(ExportRefusedError, match="no rows are stored to refit from"):
        export(store, "sglang")


def test_with_too_few_rows_there_is_none_either(store):
    publish(store, rows=ROUNDS.take(slice(0, 40)))
    with pytest.raises(ExportRefusedError, match=r"no position can be refitted \(position 1: n_eff"):
        export(store, "tensorrt")


def test_the_cost_curve_in_every_format(store):
    publish(store, cost=CostCurve(batch_tokens=[1, 64], seconds=[0.01, 0.02], status=["measured"] * 2))
    names = {"cost": "batch_tokens", "sglang-cost": "sample_batch_tokens", "tensorrt-cost": "token_counts"}
    for file_format, key in {**names, "vllm-cost": "verify_curve"}.items():
        assert key in json.loads(export(store, file_format).content)
    assert set(names) < set(EXPORT_FORMATS)


@pytest.mark.parametrize(
    ("cost", "reason"),
    [
        (None, "no cost curve"),
        (
            CostCurve(batch_tokens=[1, 2], seconds=[1.0, 2.0], status=["stale"] * 2),
            "nothing that was measured",
        ),
        (CostCurve(batch_tokens=[1, 2], seconds=[1.0, 1.0], status=["measured"] * 2), "flat"),
    ],
)
def test_a_curve_that_cannot_be_said_is_refused(store, cost, reason):
    publish(store, cost=cost)
    with pytest.raises(ExportRefusedError, match=reason):
        export(store, "sglang-cost")


@pytest.mark.parametrize(("deployment", "version"), [("chat/eu-1", 4), ("other", 3)])
def test_what_does_not_exist_is_a_key_error(store, deployment, version):
    publish(store, rows=None)
    with pytest.raises(KeyError):
        export_version(store, deployment, version, "document", now=NOW)
