"""Scripts of phases, and what they do to traffic."""

import pytest

from serving_adapter.engines.replay import (
    DriftScript,
    ReplayEngine,
    Traffic,
)
from tests.replay_doubles import RecordingAdapter


def test_a_script_is_read_from_text():
    script = DriftScript.parse("typical/math+code*3,hard; 400:typical-greedy")
    assert script.phases[0].mix == (Traffic("typical", ("math", "code"), 3.0), Traffic("hard"))
    assert script.phases[1].start == 400
    assert script.phases[1].mix == (Traffic("typical-greedy"),)
    assert [script.index_at(step) for step in (0, 399, 400, 9999)] == [0, 0, 1, 1]
    assert DriftScript.parse("0:hard") == DriftScript.steady("hard")


@pytest.mark.parametrize(
    "text",
    ["", "nothing", "typical;hard", "typical;x:hard", "typical*0", "typical*x", "5:typical", "hard;0:hard"],
)
def test_a_script_that_cannot_be_read_is_refused(text):
    with pytest.raises(ValueError, match=r"got|expected"):
        DriftScript.parse(text)


def test_drift_switches_the_mix_for_new_requests():
    adapter = RecordingAdapter()
    script = DriftScript.switch([Traffic("typical", ("code",))], [Traffic("typical", ("chat",))], at=40)
    engine = ReplayEngine(adapter, script=script, concurrency=8)
    labels = dict(enumerate(("math", "code", "chat"), start=10))  # the double's own numbers
    engine.run(steps=40)
    assert engine.phase == 1
    before = {labels[int(i)] for i in adapter.column("segment")}
    adapter.calls.clear()
    engine.run(steps=100)
    adapter.calls.clear()
    engine.run(steps=50)
    assert before == {"code"}
    assert {labels[int(i)] for i in adapter.column("segment")} == {"chat"}
    assert set(engine.ledger.rounds_by_segment) == {"code", "chat"}


def test_drift_can_change_the_sampling_temperature():
    adapter = RecordingAdapter()
    engine = ReplayEngine(adapter, script=DriftScript.parse("typical-greedy;1:typical-hot"), concurrency=8)
    engine.run(steps=1)
    assert set(adapter.column("sampling").tolist()) == {0.0}
    engine.run(steps=120)
    assert set(adapter.calls[-1]["sampling"].tolist()) == {1.0}


def test_a_mix_has_the_shares_of_its_weights():
    adapter = RecordingAdapter()
    script = DriftScript.parse("typical/code*3,typical/chat")
    engine = ReplayEngine(adapter, script=script, concurrency=64)
    engine.run(steps=300)
    counts = engine.ledger.rounds_by_segment
    assert 0.65 < counts["code"] / counts.total() < 0.85


def test_a_script_that_names_what_is_not_there_is_refused():
    with pytest.raises(ValueError, match="'poetry'"):
        ReplayEngine(RecordingAdapter(), script=DriftScript.steady("typical", "poetry"))
    with pytest.raises(ValueError, match="'hard'"):
        ReplayEngine(RecordingAdapter(), script=DriftScript.steady("hard"), recordings={})
