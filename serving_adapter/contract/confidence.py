"""From raw confidence logits to calibrated acceptance probabilities.

One place for the formula that engines, collectors and fits must agree on::

    c_k = sigmoid(z_k / T_k + b_k)          conditional acceptance of position k
    a_k = c_1 * c_2 * ... * c_k             survival of the prefix of length k
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float = NDArray[np.float64]


def sigmoid(x: ArrayLike) -> Float:
    """Logistic function that neither overflows nor warns, for any finite or infinite input.

    >>> sigmoid([-1000.0, 0.0, 1000.0])
    array([0. , 0.5, 1. ])
    """
    values = np.asarray(x, dtype=np.float64)
    z = np.exp(-np.abs(values))
    return np.where(values >= 0, 1.0, z) / (1.0 + z)


def conditional_confidence(logits: ArrayLike, temperatures: ArrayLike, offsets: ArrayLike) -> Float:
    """Conditional acceptance probabilities ``c_k``.

    Parameters
    ----------
    logits
        Raw confidence logits, shape ``[..., gamma]``, before any temperature.
    temperatures, offsets
        Shape ``[gamma]``; ones and zeros are the identity.

    Returns
    -------
    Array of the shape of ``logits``, values in [0, 1].
    """
    z = np.asarray(logits, dtype=np.float64)
    return sigmoid(z / np.asarray(temperatures, dtype=np.float64) + np.asarray(offsets, dtype=np.float64))


def prefix_survival(conditionals: ArrayLike) -> Float:
    """Predicted survival ``a_k`` of every prefix: the running product along the last axis.

    >>> prefix_survival([[0.5, 0.5, 1.0]])
    array([[0.5 , 0.25, 0.25]])
    """
    return np.multiply.accumulate(np.asarray(conditionals, dtype=np.float64), axis=-1)
