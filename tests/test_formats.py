"""Files of other engines: what we write they read, what they write we check."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrator.core.cost import AdditiveCost, CostCells, fit_curve
from calibrator.core.labels import prefix_labels
from calibrator.core.temperature import fit_temperatures
from calibrator.formats import cost_files, temperatures
from calibrator.formats.cost_files import encode_cost_curve, read_cost
from calibrator.formats.cost_model import CostModel, straight
from calibrator.formats.deepspec import deepspec_lines
from calibrator.formats.record_checks import check_records
from calibrator.formats.sglang_cost import encode_sglang_additive, encode_sglang_table
from calibrator.formats.temperatures import FILE_FORMATS, FormatError, encode_file, read_parameters
from calibrator.formats.tensorrt_cost import encode_tensorrt_table
from calibrator.formats.vllm_cost import VllmCurves
from collectors.files import read_records
from serving_adapter.contract import CostCurve, ParameterDocument, Rounds, Steps, seal
from serving_adapter.contract.parameters import encode_document
from serving_adapter.engines.replay.cost import knee_curve, load_cost_samples, measured_curve
from serving_adapter.step_cost import StepCost
from tests.peers import SGLang, sglang  # noqa: F401
from tests.recorded import NAMES, recorded

MEASURED = StepCost.from_curve(measured_curve())
STAIRCASE = StepCost([1, 8, 9, 16, 17, 64, 65, 200], [0.01, 0.01, 0.014, 0.014, 0.02, 0.02, 0.05, 0.11])
ADDITIVE = AdditiveCost(
    bias_seconds=0.02,
    requests=np.array([1, 16, 64]),
    alpha_seconds=np.array([0.0, 0.004, 0.02]),
    batch_tokens=np.array([1, 64, 512]),
    theta_seconds=np.array([0.0, 0.05, 0.41]),
)


def document(**changes):
    fields = {
        "deployment": "demo",
        "fingerprint": "f",
        "version": 3,
        "gamma": 3,
        "form": "temperature",
        "temperatures": [1.25, 0.5, 10.0],
        "offsets": [0.0] * 3,
        "created_at": "2026-01-01T00:00:00Z",
    }
    return ParameterDocument(**{**fields, **changes})


def written(tmp_path, payload, name="cost.json"):
    path = tmp_path / name
    path.write_bytes(payload if isinstance(payload, bytes) else json.dumps(payload).encode())
    return path


def random_cost(seed):
    random = np.random.default_rng(seed)
    sizes = np.cumsum(random.integers(1, 40, 8))
    rises = random.choice([0.0, 1e-4, 0.01], 8) + 1e-6
    return StepCost(sizes, 0.001 + np.cumsum(rises), "linear" if seed % 2 else "floor")


costs = st.integers(0, 2**32 - 1).map(random_cost)


# Temperatures


@pytest.mark.parametrize("file_format", FILE_FORMATS)
def test_temperatures_come_back_from_every_format(tmp_path, file_format):
    path = written(tmp_path, encode_file(document(), file_format, dataset="traffic", num_samples=7))
    assert read_parameters(path).temperatures.tolist() == [1.25, 0.5, 10.0]


def test_sglang_loads_our_temperatures(tmp_path, sglang: SGLang):  # noqa: F811
    path = written(tmp_path, encode_file(document(), "sglang", dataset="traffic", num_samples=7))
    loaded = sglang.sts.load_sts_calibration_from_path(str(path))
    assert loaded.temperatures == [1.25, 0.5, 10.0]
    assert (loaded.dataset, loaded.num_samples) == ("traffic", 7)


def test_the_tensorrt_file_has_both_keys_and_sglang_reads_it_too(tmp_path, sglang: SGLang):  # noqa: F811
    path = written(tmp_path, encode_file(document(), "tensorrt-llm"))
    content = json.loads(path.read_text())
    assert content["temperatures"] == content["sts_temperatures"] == [1.25, 0.5, 10.0]
    assert content["max_draft_len"] == 3
    assert sglang.sts.load_sts_calibration_from_path(str(path)).temperatures == [1.25, 0.5, 10.0]


@pytest.mark.parametrize("file_format", ["sglang", "tensorrt-llm"])
def test_offsets_do_not_fit_into_a_file_of_temperatures(file_format):
    with pytest.raises(FormatError, match="hold no offsets"):
        encode_file(document(form="affine", offsets=[0.1, 0.2, 0.3]), file_format)


@pytest.mark.parametrize("name", NAMES)
def test_sglangs_fitter_and_ours_give_the_same_temperatures(name, sglang: SGLang):  # noqa: F811
    torch = pytest.importorskip("torch")
    rounds = recorded(name)
    labels = prefix_labels(rounds)
    theirs = sglang.fit.fit_sts_temperatures(
        logits=torch.tensor(np.asarray(rounds.logits, dtype=np.float64)),
        prefix_mask=torch.tensor(labels.astype(np.float64)),
        grid=sglang.fit.default_temperature_grid(),
    )
    ours = fit_temperatures(rounds.logits, labels)
    assert ours.temperatures == pytest.approx(theirs["temperatures"], rel=1e-6)
    assert ours.ece_before == pytest.approx(theirs["ece_before"], abs=1e-6)
    assert ours.ece_after == pytest.approx(theirs["ece_after"], abs=1e-6)


# SGLang's throughput files


@pytest.mark.parametrize("cost", [MEASURED, STAIRCASE], ids=["measured", "staircase"])
def test_sglangs_lookup_gives_our_curve_at_every_size(tmp_path, cost, sglang: SGLang):  # noqa: F811
    path = written(tmp_path, encode_sglang_table(cost))
    table = sglang.sps.load_sps_table_from_path(str(path))
    assert not sglang.sps.is_uninitialized_sps_table(table)
    for size in range(1, cost.measured_to + 1):
        assert table.lookup(size) == pytest.approx(1 / float(cost.seconds(size)), rel=1e-12)
        assert read_cost(path).seconds(1, size) == pytest.approx(1 / table.lookup(size), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(costs, st.integers(2, 12))
def test_a_lookup_by_floor_never_promises_more_than_was_measured(cost, entries):
    content = json.loads(encode_sglang_table(cost, max_entries=entries))
    probes, rates = content["sample_batch_tokens"], content["sample_steps_per_sec"]
    assert len(probes) <= entries
    assert content["max_batch_tokens"] >= probes[-1]
    for size in range(1, cost.measured_to + 1):
        promised = rates[max(np.searchsorted(probes, size, side="right") - 1, 0)]
        assert promised * float(cost.seconds(size)) <= 1.0


def test_beyond_the_measured_sizes_the_table_goes_on_with_the_last_marginal_cost():
    content = json.loads(encode_sglang_table(MEASURED, max_batch_tokens=512))
    assert content["max_batch_tokens"] == 512
    assert content["sample_steps_per_sec"][-1] == pytest.approx(1 / float(MEASURED.seconds(512)))
    with pytest.raises(FormatError, match="max_batch_tokens: got 100, expected at least"):
        encode_sglang_table(MEASURED, max_batch_tokens=100)


def test_sglang_computes_our_additive_step_time(tmp_path, sglang: SGLang):  # noqa: F811
    path = written(tmp_path, encode_sglang_additive(ADDITIVE))
    table = sglang.sps.load_sps_table_from_path(str(path))
    model = read_cost(path)
    for requests in (1, 5, 16, 40, 64, 100):
        for drafts in (0, 3, 100, 400):
            ours = float(ADDITIVE.seconds(requests, requests + drafts))
            assert table.step_time(num_reqs=requests, budget=drafts) == pytest.approx(ours, rel=1e-12)
            if requests + drafts <= 512:
                assert model.seconds(requests, requests + drafts) == pytest.approx(ours, rel=1e-12)


def test_what_sglangs_profiler_assembles_we_read(tmp_path, sglang: SGLang):  # noqa: F811
    table = sglang.sps.profile_sps_table(probes=[(1, 30.0), (8, 29.0), (64, 8.0)], max_batch_tokens=256)
    model = read_cost(written(tmp_path, table.to_json().encode()))
    for size in (1, 7, 8, 63, 64, 100, 256):
        assert model.seconds(4, size) == pytest.approx(1 / table.lookup(size))


def test_a_flat_curve_is_not_exported():
    for encode in (encode_sglang_table, encode_tensorrt_table):
        with pytest.raises(FormatError, match="flat"):
            encode(StepCost([1, 64], [0.03, 0.03]))
    with pytest.raises(FormatError, match="bias_seconds"):
        encode_sglang_additive(AdditiveCost(0.0, *(np.array([1, 2]), np.zeros(2)) * 2))


# TensorRT-LLM


@settings(max_examples=40, deadline=None)
@given(costs)
def test_tensorrts_clamped_lines_give_our_curve_at_every_size(cost):
    content = json.loads(encode_tensorrt_table(cost))
    sizes = np.arange(1, cost.measured_to + 1)
    looked_up = content["fixed_overhead_ms"] + np.interp(
        sizes, content["token_counts"], content["step_time_ms"]
    )
    assert looked_up / 1e3 == pytest.approx(cost.seconds(sizes), rel=1e-12)


def test_tensorrt_tables_come_back_with_both_parts(tmp_path):
    path = written(tmp_path, encode_tensorrt_table(ADDITIVE))
    content = json.loads(path.read_text())
    assert content["fixed_overhead_ms"] == pytest.approx(20.0)
    assert content["batch_overhead_ms"] == pytest.approx([0.0, 4.0, 20.0])
    assert content["_meta"]["lookup"] == "interp"
    for requests, tokens in ((1, 1), (16, 64), (40, 300)):
        assert read_cost(path).seconds(requests, tokens) == pytest.approx(ADDITIVE.seconds(requests, tokens))


# vLLM


def vllm_lookup(points, size, limit):
    """Its rule in words: up to the captured limit the next point, beyond it a line between points beyond."""
    if limit == 0 or size <= limit:
        return next((ms for at, ms in points if at >= size), points[-1][1])
    beyond = [(at, ms) for at, ms in points if at > limit]
    return float(np.interp(size, [at for at, _ in beyond], [ms for _, ms in beyond]))


@settings(max_examples=40, deadline=None)
@given(costs, st.sampled_from([0, 16, 50]))
def test_vllms_lookup_gives_our_curve_at_every_size(cost, limit):
    curves = VllmCurves.from_step_cost(cost, cudagraph_limit=limit)
    back = VllmCurves.decode("file", json.loads(curves.encode()))
    assert back == curves
    for size in range(1, cost.measured_to + 1):
        expected = float(cost.seconds(size))
        assert vllm_lookup(curves.verify_curve, size, limit) / 1e3 == pytest.approx(expected, rel=1e-9)
        assert back.model().seconds(1, size) == pytest.approx(expected, rel=1e-9)


def test_vllms_curves_come_from_draft_and_verify_times(tmp_path):
    requests = np.repeat([1, 4, 16], 60)
    cells = CostCells.fold(
        Steps.build(
            step_seconds=np.full(180, 0.1),
            batch_tokens=requests * 5,
            requests=requests,
            draft_seconds=np.full(180, 0.002),
            verify_seconds=0.03 + 0.001 * requests * 5,
        ),
        epoch=0,
    )
    draft = fit_curve(cells, quantity="draft", axis="requests")
    verify = fit_curve(cells, quantity="verify")
    curves = VllmCurves.from_fits(draft, verify)
    assert [at for at, _ in curves.draft_curve] == [1, 4, 16]
    model = read_cost(written(tmp_path, curves.encode()))
    assert model.seconds(4, 20) == pytest.approx(0.052, rel=0.02)
    with pytest.raises(FormatError, match="verify curve: no step was measured"):
        VllmCurves.from_fits(draft, fit_curve(CostCells.empty()))


# Our own, and measured samples


def test_a_parameter_document_and_a_bare_curve_are_read(tmp_path):
    curve = measured_curve()
    for payload in (encode_cost_curve(curve), encode_document(seal(document(cost=curve)))):
        model = read_cost(written(tmp_path, payload))
        assert model.at(7).seconds([3, 100]) == pytest.approx(MEASURED.seconds([3, 100]))


def test_sizes_that_were_not_measured_are_not_read(tmp_path):
    curve = CostCurve(batch_tokens=[1, 8], seconds=[0.1, 0.2], status=["flat", "flat"])
    with pytest.raises(FormatError, match="sizes are flat: nothing was measured"):
        read_cost(written(tmp_path, encode_cost_curve(curve)))
    with pytest.raises(FormatError, match="no cost curve"):
        read_cost(written(tmp_path, encode_document(seal(document()))))


def test_measured_samples_become_a_curve(tmp_path):
    samples = load_cost_samples()
    lines = ["batch_tokens,seconds"]
    lines += [f"{b},{s}" for b, s in zip(samples.batch_tokens, samples.seconds, strict=True)]
    model = read_cost(written(tmp_path, "\n".join(lines).encode(), "samples.csv"))
    assert model.at(1).seconds([1, 256]) == pytest.approx(MEASURED.seconds([1, 256]), rel=0.02)


def test_a_staircase_read_by_floor_is_two_points_a_stair():
    sizes, seconds = straight(StepCost([1, 4, 5], [0.1, 0.2, 0.3], "floor"))
    assert sizes.tolist() == [1, 3, 4, 5]
    assert seconds.tolist() == [0.1, 0.1, 0.2, 0.3]
    assert CostModel.of(MEASURED).at(3).seconds(9) == MEASURED.seconds(9)


SGL = {"sample_batch_tokens": [1, 8], "sample_steps_per_sec": [30.0, 20.0], "max_batch_tokens": 8}
TRT = {"token_counts": [1, 8], "step_time_ms": [30.0, 40.0], "fixed_overhead_ms": 1.0}
ADD = {
    "bias_seconds": 0.1,
    "bs_probes": [1],
    "alpha_seconds": [0.0],
    "m_probes": [1, 8],
    "theta_seconds": [0, 1],
}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**SGL, "sample_steps_per_sec": [30.0, 30.0]}, "flat: 2 sizes"),
        ({**SGL, "sample_batch_tokens": [1], "sample_steps_per_sec": [1.0]}, "flat: 1 sizes"),
        ({**SGL, "sample_steps_per_sec": [20.0, 30.0]}, "not monotone: 8 batch tokens take 33% less"),
        ({**SGL, "sample_batch_tokens": [8, 1]}, "strictly increasing"),
        ({**SGL, "sample_steps_per_sec": [30.0]}, "sample_steps_per_sec: got 1 values, expected 2"),
        ({**SGL, "sample_steps_per_sec": [30.0, 0.0]}, "expected positive rates"),
        ({**SGL, "sample_steps_per_sec": [30.0, "fast"]}, "expected a finite number"),
        ({**SGL, "max_batch_tokens": 4}, "max_batch_tokens: got 4, expected a size >= 8"),
        ({**SGL, "sample_batch_tokens": [0, 8]}, "expected whole sizes >= 1"),
        ({**ADD, "bias_seconds": 0}, "bias_seconds: got 0"),
        ({**ADD, "theta_seconds": [0.0, 0.0]}, "flat"),
        ({**ADD, "theta_seconds": [1.0, 0.0]}, "not monotone"),
        ({**ADD, "m_probes": []}, "m_probes: got"),
        ({**TRT, "step_time_ms": [30.0, 20.0]}, "not monotone"),
        ({**TRT, "step_time_ms": [-9.0, 20.0]}, "positive finite times"),
        ({**TRT, "_meta": {"lookup": "ceil"}}, "_meta.lookup: got 'ceil'"),
        ({**TRT, "fixed_overhead_ms": -1}, "fixed_overhead_ms"),
        ({**TRT, "batch_sizes": [1, 2], "batch_overhead_ms": [1.0]}, "batch_overhead_ms: got 1 values"),
        ({"draft_curve": [[1, 0.1]], "verify_curve": [[8, 1.0], [4, 2.0]]}, "expected increasing sizes"),
        ({"draft_curve": [[1, 0.1]], "verify_curve": [[8]]}, "verify_curve: got"),
        ({"draft_curve": [], "verify_curve": [[8, 1.0]]}, "draft_curve: got"),
        ({"draft_curve": [[1, 1]], "verify_curve": [[8, 1.0]], "cudagraph_limit": -1}, "cudagraph_limit"),
        ({"batch_tokens": [1, 8], "seconds": [0.2, 0.1]}, "non-decreasing"),
        ({"batch_tokens": [1, 8], "seconds": [0.2, 0.2]}, "flat"),
        ({"something": 1}, "got keys"),
        ([1], "expected an object"),
        (b"{", "neither .csv nor JSON"),
    ],
)
def test_files_that_cannot_be_right_are_refused_in_one_line(tmp_path, content, message):
    with pytest.raises(FormatError, match=message) as refused:
        read_cost(written(tmp_path, content))
    assert "\n" not in str(refused.value)
    assert "cost.json" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("size,seconds\n1,2\n", "got columns size, seconds"),
        ("", "got columns none"),
        ("batch_tokens,seconds\n1,fast\n", "seconds: could not convert"),
        ("batch_tokens,seconds\n1\n", "seconds"),
        ("batch_tokens,seconds\n1,-2\n", "step_seconds: row 0"),
        ("batch_tokens,seconds\n" + "1,0.1\n" * 20, "no usable curve: 1 sizes measured"),
    ],
)
def test_tables_of_samples_that_cannot_be_right_are_refused(tmp_path, text, message):
    with pytest.raises(FormatError, match=message):
        read_cost(written(tmp_path, text.encode(), "samples.csv"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FormatError, match=r"none.json: No such file"):
        read_cost(tmp_path / "none.json")


def test_small_falls_of_a_measured_table_are_evened_out(tmp_path):
    model = read_cost(
        written(tmp_path, {**TRT, "token_counts": [1, 8, 9], "step_time_ms": [30.0, 40.0, 39.9]})
    )
    assert model.seconds(1, 9) == model.seconds(1, 8)


# Records


def test_deepspec_records_come_back(tmp_path):
    rounds = Rounds.build(
        [[0.5, -1.0, 2.0], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0]],
        [1, 3, 0],
        verified=[2, 3, 0],
        request=[5, 5, 6],
        step=[0, 1, 0],
        sampling=[0.5, 0.5, 0.0],
        segment=[0, 0, 1],
        segments=["math", "chat"],
    )
    path = tmp_path / "records.jsonl"
    path.write_text("".join(line + "\n" for line in deepspec_lines(rounds)))
    back = read_records([path]).rounds
    assert len(back) == 2  # a round without a label teaches nothing
    assert back.accepted.tolist() == [1, 3]
    assert back.verified.tolist() == [2, 3]
    assert back.logits[1].tolist() == [1.0, 2.0, 3.0]
    assert back.logits[0, :2].tolist() == [0.5, -1.0]


def test_recorded_rounds_survive_deepspecs_format(tmp_path):
    rounds = recorded("typical").take(slice(0, 500))
    path = tmp_path / "records.jsonl"
    path.write_text("".join(line + "\n" for line in deepspec_lines(rounds)))
    back = read_records([path]).rounds
    assert (prefix_labels(back) == prefix_labels(rounds)).all()
    assert np.allclose(back.logits, rounds.logits)


def records(count=400, gamma=4, seed=0):
    random = np.random.default_rng(seed)
    logits = random.normal(0.5, 1.5, (count, gamma)).astype(np.float32)
    accepted = (np.cumprod(random.random((count, gamma)) < 0.8, axis=1)).astype(float)
    return logits, accepted


@pytest.mark.parametrize("name", NAMES)
def test_honest_records_pass(name):
    rounds = recorded(name)
    check_records(rounds.logits, prefix_labels(rounds), gamma=7)


def test_probabilities_in_place_of_logits_are_refused():
    logits, mask = records()
    with pytest.raises(FormatError, match="probabilities, after sigmoid or temperature"):
        check_records(1 / (1 + np.exp(-logits)), mask)


def test_logits_after_a_temperature_betray_themselves_beside_raw_ones():
    logits, mask = records()
    coarse = (logits.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)  # a bfloat16 head
    check_records(coarse, mask)
    divided = coarse / np.array([1.0, 1.2589, 1.0, 0.8], dtype=np.float32)
    with pytest.raises(FormatError, match="divided by a temperature"):
        check_records(divided, mask)


def test_placeholders_are_refused():
    logits, mask = records()
    logits[:, 2] = 1.0
    with pytest.raises(FormatError, match="position 3 has the logit 1 in every round: a placeholder"):
        check_records(logits, mask)


def test_rounds_of_a_planner_that_trims_are_refused():
    logits, mask = records()
    mask[:, 2:] = 0.0
    with pytest.raises(FormatError, match=r"position 3 is never accepted in .* the planner trimmed"):
        check_records(logits, mask)


def test_garbage_beyond_the_verified_length_is_refused():
    logits, mask = records()
    logits[7, 3] = 3e30
    with pytest.raises(FormatError, match="garbage"):
        check_records(logits, mask)


def test_records_of_another_shape_are_refused():
    logits, mask = records()
    with pytest.raises(FormatError, match="expected gamma = 7"):
        check_records(logits, mask, gamma=7)
    with pytest.raises(FormatError, match="labels"):
        check_records(logits, mask[:, :2])
    with pytest.raises(FormatError, match="not prefix labels"):
        check_records(logits, mask[:, ::-1])


def test_knee_curves_go_through_every_format(tmp_path):
    cost = StepCost.from_curve(knee_curve(last=1024))
    sizes = np.array([1, 100, 128, 129, 500, 1024])
    vllm = VllmCurves.from_step_cost(cost).encode()
    for payload in (encode_sglang_table(cost), encode_tensorrt_table(cost), vllm):
        model = read_cost(written(tmp_path, payload))
        assert model.seconds(1, sizes) == pytest.approx(cost.seconds(sizes), rel=1e-9)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"sts_temperatures": [1.0, 1.5], "max_draft_len": 3}, "max_draft_len: got 3, expected 2"),
        ({"temperatures": [1.0, 2.0], "sts_temperatures": [1.0, 1.5]}, "sts_temperatures differ"),
    ],
)
def test_a_temperature_file_that_contradicts_itself_is_refused(content, problem):
    with pytest.raises(FormatError, match=problem):
        temperatures.decode_parameters("file", json.dumps(content).encode())


def test_a_table_by_floor_is_bounded_and_clamped_at_its_end():
    with pytest.raises(FormatError, match="no engine runs such a batch"):
        encode_sglang_table(StepCost([1, 40_000_000], [0.01, 9.0]))
    assert (
        len(json.loads(encode_sglang_table(StepCost([1, 900_000], [0.01, 9.0])))["sample_batch_tokens"])
        <= 1024
    )
    cost = cost_files.decode_cost("table", json.dumps(SGL).encode()).by_tokens
    assert cost.seconds([8, 800]).tolist() == [0.05, 0.05]
