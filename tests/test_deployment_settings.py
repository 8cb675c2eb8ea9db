"""Settings of a deployment: what is left out falls back, what is wrong is named."""

import msgspec
import pytest

from calibrator.service.deployment_settings import DeploymentSettings, merge_settings, read_settings
from serving_adapter.contract import ContractError


def test_a_deployment_without_settings_explores_by_itself_and_publishes_at_once() -> None:
    settings = read_settings({})
    assert settings == DeploymentSettings()
    assert (settings.explore.mode, settings.rollout.mode) == ("auto", "direct")
    assert settings.recency.forget
    assert (settings.form, settings.half_life_seconds, settings.share) == (None, None, None)


def test_what_was_read_is_written_back_as_it_was() -> None:
    stored = {
        "explore": {"mode": "fixed", "explore": 0.05},
        "form": "affine",
        "half_life_seconds": 86400.0,
        "share": 0.5,
        "recency": {"forget": False},
        "rollout": {"mode": "canary", "share": 0.2},
    }
    assert msgspec.to_builtins(read_settings(stored)) == stored


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"explore": {"floor": 2}}, "explore.floor: got 2, expected a number <= 1.0"),
        ({"explore": {"floor": "x"}}, "explore.floor: got 'x', expected a number or null"),
        ({"explore": 3}, "explore: got 3, expected an object"),
        ({"explore": {"mode": "fixed"}}, "explore.explore: got None, expected a probability when"),
        ({"explore": {"floor": 0.5, "ceiling": 0.1}}, "explore.ceiling: got 0.1, expected at least explore"),
        ({"explore": {"mode": "off"}}, "explore.mode: got 'off', expected one of 'auto', 'fixed'"),
        ({"explore": {"depth": 1}}, "explore.depth: got 1, expected one of mode, explore, floor, ceiling"),
        ({"colour": "red"}, "colour: got 'red', expected one of explore, form, half_life_seconds, share"),
        ({"form": "spline"}, "form: got 'spline', expected one of 'auto', 'temperature', 'affine'"),
        ({"share": 0}, "share: got 0, expected a number > 0.0"),
        ({"share": True}, "share: got True, expected a number or null"),
        ({"share": float("nan")}, "share: got nan, expected a finite number"),
        ({"half_life_seconds": 10**400}, "half_life_seconds: got 1000.*expected a number of ordinary size"),
        ({"recency": {"min_rows": 1.5}}, "recency.min_rows: got 1.5, expected a whole number"),
        ({"rollout": {"mode": "blue-green"}}, "rollout.mode: got 'blue-green', expected one of 'direct'"),
        ({1: 2}, "settings: got {1: 2}, expected a string"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(settings, message) -> None:
    with pytest.raises(ContractError, match=message):
        read_settings(settings)


def test_a_change_keeps_what_it_does_not_name() -> None:
    stored = {"explore": {"floor": 0.01, "ceiling": 0.05}, "share": 0.5}
    changed = merge_settings(stored, {"explore": {"floor": 0.02}})
    assert changed == {"explore": {"floor": 0.02, "ceiling": 0.05}, "share": 0.5}
    assert stored["explore"]["floor"] == 0.01


def test_null_gives_a_setting_back_to_the_service() -> None:
    assert merge_settings({"share": 0.5, "form": "affine"}, {"share": None}) == {"form": "affine"}


def test_a_change_that_does_not_fit_what_is_stored_is_refused() -> None:
    with pytest.raises(ContractError, match=r"explore\.ceiling: got 0\.05"):
        merge_settings({"explore": {"ceiling": 0.05}}, {"explore": {"floor": 0.1}})
