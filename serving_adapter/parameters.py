"""The parameters in force in an engine, ready to compute with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from serving_adapter.contract import (
    CostCurve,
    Form,
    ParameterDocument,
    Rounds,
    conditional_confidence,
    prefix_survival,
)
from serving_adapter.segment_sets import SegmentSets


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """What a published document means to an engine.

    ``temperatures`` and ``offsets`` have shape ``[gamma]`` and are read-only. ``explore`` is rounded to
    the half precision in which rows carry it, so that the logged propensity is the one that was used.
    ``sets`` are those per segment and sampling bucket that the engine applies, None where there are none.
    """

    version: int
    form: Form
    temperatures: NDArray[np.float64]
    offsets: NDArray[np.float64]
    explore: float
    share: float
    cost: CostCurve | None
    sets: SegmentSets | None = None

    @classmethod
    def identity(cls, gamma: int, *, explore: float = 0.0) -> Parameters:
        """Version 0: confidences as the head gives them, every round emitted, no cost curve."""
        return cls(
            version=0,
            form="temperature",
            temperatures=_read_only(np.ones(gamma)),
            offsets=_read_only(np.zeros(gamma)),
            explore=half_precision(explore),
            share=1.0,
            cost=None,
        )

    @classmethod
    def from_document(cls, document: ParameterDocument, labels: Sequence[str] | None = None) -> Parameters:
        """Parameters of a validated document.

        Parameters
        ----------
        document
            As published.
        labels
            Segment labels by the index that rows carry; None for an engine that applies the pooled set only.
        """
        return cls(
            version=document.version,
            form=document.form,
            temperatures=_read_only(np.array(document.temperatures, dtype=np.float64)),
            offsets=_read_only(np.array(document.offsets, dtype=np.float64)),
            explore=half_precision(document.explore),
            share=document.share,
            cost=document.cost,
            sets=SegmentSets(document, labels) if document.segments and labels is not None else None,
        )

    @property
    def gamma(self) -> int:
        """Number of draft positions."""
        return int(self.temperatures.shape[0])

    def calibrate(
        self, logits: ArrayLike, segment: ArrayLike = 0, sampling: ArrayLike = 0.0
    ) -> NDArray[np.float64]:
        """Conditional acceptance ``c_k`` from raw logits ``[..., gamma]``.

        Parameters
        ----------
        logits
            Raw confidence logits, ``[..., gamma]``.
        segment, sampling
            Segment index and sampling temperature of every row, ``[rows]``, or one for all: what is passed
            to ``observe`` for the same rows, with the same defaults.

        >>> Parameters.identity(2).calibrate([0.0, 0.0])
        array([0.5, 0.5])
        """
        if self.sets is None:
            return conditional_confidence(logits, self.temperatures, self.offsets)
        return conditional_confidence(logits, *self.sets.rows(segment, sampling))

    def survival(
        self, logits: ArrayLike, segment: ArrayLike = 0, sampling: ArrayLike = 0.0
    ) -> NDArray[np.float64]:
        """Prefix survival ``a_k = c_1 ... c_k`` from raw logits; arguments as of :meth:`calibrate`."""
        return prefix_survival(self.calibrate(logits, segment, sampling))

    def survival_of(self, rounds: Rounds) -> NDArray[np.float64]:
        """Prefix survival of rounds, whose segments are told by their own labels, ``[rows, gamma]``."""
        if self.sets is None:
            return self.survival(rounds.logits)
        return prefix_survival(conditional_confidence(rounds.logits, *self.sets.rows_of(rounds)))


def half_precision(probability: float) -> float:
    """Round a probability to the nearest one that a row can carry."""
    return float(np.float16(probability))


def _read_only(array: NDArray[np.float64]) -> NDArray[np.float64]:
    array.setflags(write=False)
    return array
