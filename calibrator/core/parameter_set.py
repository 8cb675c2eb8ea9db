"""A set of calibration parameters as arrays, whatever published it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrator.core.document_survival import survival_by_sets
from serving_adapter.contract import (
    Form,
    ParameterDocument,
    Rounds,
    SegmentParameters,
    conditional_confidence,
    prefix_survival,
)

Float = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ParameterSet:
    """``c_k = sigmoid(z_k / temperatures[k] + offsets[k])``; both arrays have shape ``[gamma]``.

    ``entries`` are sets per segment and sampling bucket that serve their rows in its place.

    >>> shifted = ParameterSet("affine", np.array([1.0, 2.0]), np.array([0.0, -1.0]))
    >>> shifted.survival(Rounds.build([[0.0, 2.0]], [1]))
    array([[0.5 , 0.25]])
    """

    form: Form
    temperatures: Float
    offsets: Float
    entries: tuple[SegmentParameters, ...] = ()

    @classmethod
    def identity(cls, gamma: int) -> ParameterSet:
        """All temperatures 1, all offsets 0."""
        return cls("temperature", np.ones(gamma), np.zeros(gamma))

    @classmethod
    def of(cls, document: ParameterDocument) -> ParameterSet:
        """All that a document publishes, sets per segment included."""
        temperatures, offsets = np.array(document.temperatures), np.array(document.offsets)
        return cls(document.form, temperatures, offsets, tuple(document.segments))

    def survival(self, rounds: Rounds) -> Float:
        """Predicted prefix survival ``a_k``, shape ``[rows, gamma]``."""
        pooled = prefix_survival(conditional_confidence(rounds.logits, self.temperatures, self.offsets))
        return survival_by_sets(pooled, self.entries, rounds, None) if self.entries else pooled
