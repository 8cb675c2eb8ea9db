"""Rows of the filled service, and direct calculations from them."""

import dataclasses

import numpy as np

from calibrator.core.labels import included, prefix_labels
from calibrator.core.survival import survival
from calibrator.core.windows import WindowSums, fold
from serving_adapter.contract import Rounds
from tests.recorded import recorded
from tests.web_support import segmented

ROUNDS = 6000
"""Rows dealt to segments; 2000 more follow in the default one."""


def traffic() -> Rounds:
    """What the fixture has ingested for ``chat``, logits as the wire carries them."""
    return as_sent(recorded("typical").take(slice(0, ROUNDS + 2000)))


def first_part() -> Rounds:
    """The part of it that is dealt to segments."""
    return as_sent(segmented(recorded("typical").take(slice(0, ROUNDS))))


def as_sent(rounds: Rounds) -> Rounds:
    return dataclasses.replace(rounds, logits=rounds.logits.astype(np.float16))


def raw_survival(rounds: Rounds) -> np.ndarray:
    return survival(rounds.logits, np.ones(rounds.gamma), np.zeros(rounds.gamma))


def raw_sums(rounds: Rounds) -> WindowSums:
    return fold(rounds, raw_survival(rounds))


def labelled(rounds: Rounds) -> tuple[np.ndarray, np.ndarray]:
    """Labels, and which positions belong to the traffic, each [rows, gamma]."""
    return prefix_labels(rounds), included(rounds)
