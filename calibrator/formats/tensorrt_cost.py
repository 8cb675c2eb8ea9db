"""TensorRT-LLM's cost table (``confidence_cost_table_path``): milliseconds, linear between probes.

``fixed_overhead_ms + step_time_ms(tokens) + batch_overhead_ms(requests)``, ends clamped.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from calibrator.core.cost import AdditiveCost
from calibrator.formats.cost_model import CostModel, checked_cost, read_numbers, read_sizes, straight
from calibrator.formats.temperatures import FormatError
from serving_adapter.step_cost import StepCost


def encode_tensorrt_table(cost: StepCost | AdditiveCost) -> bytes:
    """Encode either form.

    Raises
    ------
    FormatError
        A curve that never rises.
    """
    model = CostModel.of(cost)
    sizes, seconds = straight(model.by_tokens)
    if seconds[-1] <= seconds[0]:
        raise FormatError("flat: every size takes the same time, no engine could trim by this table")
    fixed = cost.bias_seconds if isinstance(cost, AdditiveCost) else 0.0
    theta = cost.theta_seconds if isinstance(cost, AdditiveCost) else seconds
    content = {
        "token_counts": sizes.tolist(),
        "step_time_ms": (1e3 * theta).tolist(),
        "fixed_overhead_ms": 1e3 * fixed,
        "batch_sizes": model.requests.tolist(),
        "batch_overhead_ms": (1e3 * model.request_seconds).tolist(),
        "_meta": {"lookup": "interp", "source": "dspark-calibrator"},
    }
    return (json.dumps(content, allow_nan=False) + "\n").encode()


def decode_tensorrt_table(where: str, content: dict[str, Any]) -> CostModel:
    """Read a table.

    Raises
    ------
    FormatError
        Naming the field, or saying that the table is flat or not monotone.
    """
    meta = content.get("_meta", {})
    lookup = meta.get("lookup", "interp") if isinstance(meta, dict) else meta
    if lookup != "interp":
        raise FormatError(f"{where}: _meta.lookup: got {lookup!r:.60}, expected interp")
    sizes = read_sizes(where, content, "token_counts")
    times = read_numbers(where, content, "step_time_ms", len(sizes))
    fixed = content.get("fixed_overhead_ms", 0.0)
    if (
        isinstance(fixed, bool)
        or not isinstance(fixed, int | float)
        or not (np.isfinite(fixed) and fixed >= 0)
    ):
        raise FormatError(f"{where}: fixed_overhead_ms: got {fixed!r:.60}, expected milliseconds >= 0")
    requests: list[int] = []
    overhead: list[float] = []
    if content.get("batch_sizes"):
        requests = read_sizes(where, content, "batch_sizes")
        overhead = read_numbers(where, content, "batch_overhead_ms", len(requests))
    least = min(overhead, default=0.0)
    base = checked_cost(where, sizes, (np.asarray(times) + fixed + least) / 1e3)
    return CostModel(base, np.array(requests, dtype=np.int64), (np.asarray(overhead) - least) / 1e3)
