"""A set of calibration parameters as arrays, whatever published it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serving_adapter.contract import Form, Rounds, conditional_confidence, prefix_survival

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ParameterSet:
    """``c_k = sigmoid(z_k / temperatures[k] + offsets[k])``; both arrays have shape ``[gamma]``."""

    form: Form
    temperatures: Float
    offsets: Float

    @classmethod
    def identity(cls, gamma: int) -> ParameterSet:
        """All temperatures 1, all offsets 0."""
        return cls("temperature", np.ones(gamma), np.zeros(gamma))

    def survival(self, rounds: Rounds) -> Float:
        """Predicted prefix survival ``a_k``, shape ``[rows, gamma]``."""
        return prefix_survival(conditional_confidence(rounds.logits, self.temperatures, self.offsets))
