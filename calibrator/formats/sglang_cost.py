"""SGLang's two throughput files: steps per second by batch tokens, and the additive form in seconds.

Read by ``dspark_sps.load_sps_table_from_path`` (checked against release 0.5.23). The first is looked up
by floor: the entry of the largest size that is not above the batch.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from calibrator.core.cost import AdditiveCost
from calibrator.formats.cost_model import CostModel, checked_cost, plateaus, read_numbers, read_sizes
from calibrator.formats.temperatures import FormatError
from serving_adapter.step_cost import StepCost

MAX_ENTRIES = 1024


def encode_sglang_table(
    cost: StepCost, *, max_batch_tokens: int | None = None, max_entries: int = MAX_ENTRIES
) -> bytes:
    """Encode a curve so that a lookup by floor never promises more than was measured.

    Each entry holds the rate of the largest, that is slowest, size that the lookup will use it for. With
    at most ``max_entries`` different times the lookup is exact at every size; a longer curve is cut
    where times have risen by a little, the same share everywhere.

    Parameters
    ----------
    cost
        Measured sizes only.
    max_batch_tokens
        Largest size the engine may look up; the largest measured one when left out. Beyond what was
        measured the curve's last marginal cost goes on.

    Raises
    ------
    FormatError
        A curve that never rises: SGLang would verify everything, as without a file.
    """
    largest = cost.measured_to if max_batch_tokens is None else max_batch_tokens
    if largest < cost.measured_to:
        raise FormatError(
            f"max_batch_tokens: got {largest}, expected at least the largest measured size {cost.measured_to}"
        )
    starts, slowest = plateaus(cost, largest, max_entries)
    if len(starts) < 2:
        raise FormatError("flat: every size takes the same time, SGLang could not trim by this table")
    content = {
        "sample_batch_tokens": starts.tolist(),
        # Rounded towards slower: the reciprocal of a rate must not come out faster than the time.
        "sample_steps_per_sec": [float(np.nextafter(1.0 / s, 0.0)) for s in slowest],
        "max_batch_tokens": int(largest),
    }
    return _encode(content)


def encode_sglang_additive(cost: AdditiveCost) -> bytes:
    """Encode the additive form: ``bias + alpha(requests) + theta(requests + drafts)``, clamped linear.

    Raises
    ------
    FormatError
        A bias that is not positive, which SGLang refuses.
    """
    if cost.bias_seconds <= 0:
        raise FormatError(f"bias_seconds: got {cost.bias_seconds}, expected more than 0")
    content = {
        "bias_seconds": float(cost.bias_seconds),
        "bs_probes": cost.requests.tolist(),
        "alpha_seconds": cost.alpha_seconds.tolist(),
        "m_probes": cost.batch_tokens.tolist(),
        "theta_seconds": cost.theta_seconds.tolist(),
    }
    return _encode(content)


def decode_sglang_table(where: str, content: dict[str, Any]) -> CostModel:
    """Read the table by batch tokens.

    Raises
    ------
    FormatError
        Naming the field, or saying that the table is flat or not monotone.
    """
    sizes = read_sizes(where, content, "sample_batch_tokens")
    rates = read_numbers(where, content, "sample_steps_per_sec", len(sizes))
    largest = content.get("max_batch_tokens")
    if isinstance(largest, bool) or not isinstance(largest, int) or largest < sizes[-1]:
        raise FormatError(
            f"{where}: max_batch_tokens: got {largest!r:.60}, expected a size >= {sizes[-1]}, the last probe"
        )
    if min(rates) <= 0:
        raise FormatError(f"{where}: sample_steps_per_sec: got {min(rates)}, expected positive rates")
    seconds = [1.0 / rate for rate in rates]
    if largest > sizes[-1] and len(sizes) > 1:
        sizes, seconds = [*sizes, largest], [*seconds, seconds[-1]]
    return CostModel.of(checked_cost(where, sizes, seconds, "floor", clamped=True))


def decode_sglang_additive(where: str, content: dict[str, Any]) -> CostModel:
    """Read the additive form.

    Raises
    ------
    FormatError
        Naming the field, or saying that theta is flat or not monotone.
    """
    bias = content.get("bias_seconds")
    if isinstance(bias, bool) or not isinstance(bias, int | float) or not (np.isfinite(bias) and bias > 0):
        raise FormatError(f"{where}: bias_seconds: got {bias!r:.60}, expected more than 0 seconds")
    requests = read_sizes(where, content, "bs_probes")
    alpha = read_numbers(where, content, "alpha_seconds", len(requests))
    tokens = read_sizes(where, content, "m_probes")
    theta = read_numbers(where, content, "theta_seconds", len(tokens))
    # A part may be shifted against the other: what must be positive is their sum.
    base = checked_cost(where, tokens, np.asarray(theta) + bias + min(alpha))
    return CostModel(base, np.array(requests, dtype=np.int64), np.asarray(alpha) - min(alpha))


def _encode(content: dict[str, Any]) -> bytes:
    return (json.dumps(content, allow_nan=False) + "\n").encode()
