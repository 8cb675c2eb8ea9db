"""What the verified part of a round says about positions behind it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrator.core.labels import positions, prefix_labels
from serving_adapter.contract import Rounds

Float = NDArray[np.float64]


def imputed_labels(rounds: Rounds, predicted: ArrayLike, known: NDArray[np.integer] | None = None) -> Float:
    """Label where it is known, else its expectation given the verified part, shape ``[rows, gamma]``.

    Behind a rejection everything is 0; behind a verified part that was accepted as a whole the expectation
    is ``a_k / a_v``, the predicted survival from there on. Right on average if these predictions are: an
    ingredient of estimates (:mod:`calibrator.core.doubly_robust`), never a label to fit.

    Parameters
    ----------
    rounds
        The rows.
    predicted
        Prefix survival ``a_k``, shape ``[rows, gamma]``.
    known
        Length up to which labels may be used, shape ``[rows]``; what was verified when left out.

    >>> rounds = Rounds.build([[0.0] * 3] * 2, [1, 0], verified=[1, 1])
    >>> imputed_labels(rounds, [[0.5, 0.25, 0.125]] * 2)
    array([[1.  , 0.5 , 0.25],
           [0.  , 0.  , 0.  ]])
    """
    a = np.asarray(predicted, dtype=np.float64)
    if a.shape != rounds.logits.shape:
        raise ValueError(f"predicted: got shape {a.shape}, expected {rounds.logits.shape}")
    length = np.asarray(rounds.verified if known is None else known).astype(np.int64)
    before = np.concatenate([np.ones((len(a), 1)), a], axis=1)
    last = before[np.arange(len(a)), length][:, None]
    alive = (np.minimum(rounds.accepted, length) == length)[:, None]
    onwards = np.divide(a, last, out=np.zeros_like(a), where=last > 0) * alive
    imputed: Float = np.where(positions(rounds) <= length[:, None], prefix_labels(rounds), onwards)
    return imputed
