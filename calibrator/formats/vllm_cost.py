"""vLLM's two curves: drafter milliseconds by requests, verify milliseconds by batch tokens.

vLLM takes them in memory (``build_cost_tables_from_curves(draft_curve, verify_curve, max_num_reqs,
max_batch_tokens, cudagraph_limit)``): up to the largest captured size a batch costs what the next point
costs, beyond it points are joined by straight lines. The JSON file is
ours.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrator.core.cost import CurveFit
from calibrator.formats.cost_model import CostModel, checked_cost, plateaus, straight
from calibrator.formats.temperatures import FormatError
from serving_adapter.step_cost import StepCost

Curve = list[tuple[int, float]]

MAX_ENTRIES = 1024


@dataclass(frozen=True, slots=True)
class VllmCurves:
    """Points ``(requests, ms)`` and ``(batch tokens, ms)``, sizes increasing, times never falling.

    ``cudagraph_limit`` is the largest captured size; with 0, vLLM goes up to the next point everywhere,
    and so it does in the draft curve.
    """

    draft_curve: Curve
    verify_curve: Curve
    cudagraph_limit: int = 0

    @classmethod
    def from_fits(
        cls,
        draft: CurveFit,
        verify: CurveFit,
        *,
        cudagraph_limit: int = 0,
        max_entries: int = MAX_ENTRIES,
    ) -> VllmCurves:
        """Build from fitted draft and verify curves.

        Parameters
        ----------
        cudagraph_limit
            The engine's largest captured size.
        max_entries
            Most points up to it; see :func:`calibrator.formats.cost_model.plateaus`.

        Raises
        ------
        FormatError
            A curve that may not be published, with the reason. A flat draft curve may.
        """
        for name, fit in (("draft", draft), ("verify", verify)):
            wrong = [r for r in fit.reasons if not (name == "draft" and r.startswith("flat"))]
            if wrong:
                raise FormatError(f"{name} curve: {wrong[0]}")
        requests = [
            (int(size), 1e3 * float(seconds))
            for size, seconds, status in zip(draft.sizes, draft.seconds, draft.statuses, strict=True)
            if status in ("measured", "flat")
        ]
        kept = np.array([status == "measured" for status in verify.statuses])
        cost = StepCost(verify.sizes[kept], verify.seconds[kept])
        return cls(requests, _points(cost, cudagraph_limit, max_entries), cudagraph_limit)

    @classmethod
    def from_step_cost(
        cls,
        cost: StepCost,
        draft: Curve | None = None,
        *,
        cudagraph_limit: int = 0,
        max_entries: int = MAX_ENTRIES,
    ) -> VllmCurves:
        """Build from step times alone; the drafter counts as free unless a curve is given."""
        return cls(draft or [(1, 0.0)], _points(cost, cudagraph_limit, max_entries), cudagraph_limit)

    def encode(self) -> bytes:
        """Render the file."""
        content = {
            "draft_curve": [list(point) for point in self.draft_curve],
            "verify_curve": [list(point) for point in self.verify_curve],
            "cudagraph_limit": self.cudagraph_limit,
        }
        return (json.dumps(content, allow_nan=False) + "\n").encode()

    @classmethod
    def decode(cls, where: str, content: dict[str, Any]) -> VllmCurves:
        """Read the file.

        Raises
        ------
        FormatError
            Naming the field.
        """
        limit = content.get("cudagraph_limit", 0)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise FormatError(f"{where}: cudagraph_limit: got {limit!r:.60}, expected a size >= 0")
        return cls(_curve(where, content, "draft_curve"), _curve(where, content, "verify_curve"), limit)

    def model(self, where: str = "vLLM curves") -> CostModel:
        """Step time as vLLM would compute it: draft by requests plus verify by batch tokens.

        Raises
        ------
        FormatError
            Verify times that are flat or not monotone.
        """
        sizes: list[int] = []
        times: list[float] = []
        before = 0
        for size, milliseconds in self.verify_curve:
            steps_up = self.cudagraph_limit == 0 or before <= self.cudagraph_limit
            if steps_up and size > before + 1:
                sizes.append(before + 1)
                times.append(milliseconds / 1e3)
            sizes.append(size)
            times.append(milliseconds / 1e3)
            before = size
        requests = np.array([r for r, _ in self.draft_curve], dtype=np.int64)
        seconds = np.array([ms / 1e3 for _, ms in self.draft_curve])
        return CostModel(checked_cost(where, sizes, times), requests, seconds)


def _points(cost: StepCost, cudagraph_limit: int, max_entries: int) -> Curve:
    """Points that vLLM's lookup turns back into the curve.

    Ends of runs where it goes up to the next point, the curve's own points where it joins them.
    """
    largest = cost.measured_to
    stepped = largest if cudagraph_limit == 0 else min(cudagraph_limit, largest)
    starts, slowest = plateaus(cost, stepped, max_entries)
    ends = np.append(starts[1:] - 1, stepped)
    points = [(int(b), 1e3 * float(s)) for b, s in zip(ends, slowest, strict=True)]
    sizes, _ = straight(cost)
    if stepped < largest:
        # Where graphs end, a first point of its own: vLLM joins no points across the limit.
        beyond = np.union1d(sizes[sizes > stepped], [stepped + 1])
        points += [(int(b), 1e3 * float(s)) for b, s in zip(beyond, cost.seconds(beyond), strict=True)]
    return points


def _curve(where: str, content: dict[str, Any], name: str) -> Curve:
    value = content.get(name)
    if not isinstance(value, list) or not value:
        raise FormatError(f"{where}: {name}: got {value!r:.60}, expected a list of [size, milliseconds]")
    points: Curve = []
    for item in value:
        pair = item if isinstance(item, list) and len(item) == 2 else [None, None]
        size, milliseconds = pair
        if (
            isinstance(size, bool)
            or not isinstance(size, int)
            or size < 1
            or isinstance(milliseconds, bool)
            or not isinstance(milliseconds, int | float)
            or not (np.isfinite(milliseconds) and milliseconds >= 0)
        ):
            raise FormatError(f"{where}: {name}: got {item!r:.60}, expected [size >= 1, milliseconds >= 0]")
        if points and size <= points[-1][0]:
            raise FormatError(f"{where}: {name}: got {size} after {points[-1][0]}, expected increasing sizes")
        points.append((size, float(milliseconds)))
    return points
