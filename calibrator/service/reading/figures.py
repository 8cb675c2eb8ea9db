"""Calibration figures of many windows at once: the formulas of the core, over whole arrays.

``calibrator.core.report.report_from_windows`` says what each figure is; a test holds both to the same ones.
Here they come with intervals. Window sums do not say which rows belong to one request, so what rounds of one
request have in common must be told (:func:`calibrator.service.reading.dependence.bearing`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrator.core.population import MAX_UNSEEN_SHARE
from calibrator.core.report import MIN_LABELS
from calibrator.core.sums import bin_unit, scalar_unit
from calibrator.core.windows import BIN_SUMS, SCALARS, WINDOW_BINS

Float = NDArray[np.float64]

Z = 1.959963984540054
"""Two-sided 95 %."""

_COUNTS = ("drafted", "verified", "accepted")


@dataclass(frozen=True, slots=True, eq=False)
class Bins:
    """Reliability bins; every array has shape ``[..., WINDOW_BINS]``.

    ``mass`` is the bin's share of the population (sums to 1, or to 0 without rows), ``predicted`` and
    ``observed`` weighted means over its labelled rows (0 without), ``n_eff`` its effective labels,
    ``share`` its mass relative to the mass of all bins with labels.
    """

    mass: Float
    share: Float
    predicted: Float
    observed: Float
    n_eff: Float

    @property
    def variance(self) -> Float:
        """Variance of ``observed``; 0 without labels."""
        rate = np.clip(self.observed, 0.0, 1.0)
        return ratio(rate * (1.0 - rate), self.n_eff)


@dataclass(frozen=True, slots=True, eq=False)
class Figures:
    """Figures per window and position; every array has shape ``[..., gamma]``, NaN where undefined.

    Attributes
    ----------
    ece, ece_low, ece_high, noise_floor
        Binned expected calibration error. The interval holds the true error of the population with 95 %
        confidence: noise adds at most its floor to the reading, and takes nothing away on average. Where
        nothing was explored it holds the error of the whole traffic, whatever the missing labels are.
    squared_error
        Debiased squared calibration error (Kumar, Liang, Ma 2019); may be negative.
    gap, gap_low, gap_high
        Mean predicted minus mean observed, above 0 is overconfident.
    n_eff
        Kish's effective number of labels.
    traffic
        Whether the figures describe the traffic (else verified traffic only), per window: shape ``[...]``.
    status
        ``ok``, ``insufficient``, ``censored`` or ``degenerate``.
    """

    ece: Float
    ece_low: Float
    ece_high: Float
    noise_floor: Float
    squared_error: Float
    gap: Float
    gap_low: Float
    gap_high: Float
    brier: Float
    log_loss: Float
    predicted: Float
    observed: Float
    n_eff: Float
    drafted: NDArray[np.int64]
    verified: NDArray[np.int64]
    coverage: Float
    status: NDArray[np.object_]
    traffic: NDArray[np.bool_]
    bins: Bins

    @property
    def excess(self) -> Float:
        """ECE beyond its noise floor, at least 0."""
        return np.maximum(self.ece - self.noise_floor, 0.0)


def figures_of(scalars: NDArray[np.int64], bins: NDArray[np.int64], bearing: Float | None = None) -> Figures:
    """Compute the figures of window sums.

    Parameters
    ----------
    scalars
        Shape ``[..., gamma, len(SCALARS)]``.
    bins
        Shape ``[..., gamma, len(BIN_SUMS), WINDOW_BINS]``.
    bearing
        Share of a label that each row bears for the intervals, in (0, 1], shape ``[gamma]``; 1, independent
        rows, when left out.
    """
    s = {name: _natural(scalars[..., i], scalar_unit(name)) for i, name in enumerate(SCALARS)}
    b = {name: _natural(bins[..., i, :], bin_unit(name)) for i, name in enumerate(BIN_SUMS)}
    traffic = _describes_traffic(s)
    table = _bins(b, traffic)
    weight, drafted = s["weight"], s["drafted"]
    labelled = weight > 0
    n_eff = ratio(weight**2, s["weight_squared"])
    predicted, observed, brier, log_loss = (
        _undefined(ratio(s[name], weight), labelled)
        for name in ("weight_predicted", "weight_accepted", "brier", "log_loss")
    )

    supported = b["weight"] > 0
    some = np.asarray(supported.any(axis=-1))
    apart = ratio(np.abs(b["predicted"] - b["accepted"]), b["weight"])
    ece = _undefined((table.share * apart).sum(axis=-1), some)
    floor = _undefined(np.sqrt(2.0 / np.pi) * (table.share * np.sqrt(table.variance)).sum(axis=-1), some)
    alone = 1.0 if bearing is None else bearing
    error = np.sqrt((table.share**2 * table.variance).sum(axis=-1) / alone)
    low, high = ece - floor / np.sqrt(alone) - Z * error, ece + Z * error
    least, most = _bounds(b)
    ece_low = np.where(traffic[..., None], low, np.minimum(low, least - Z * error))
    ece_high = np.where(traffic[..., None], high, np.maximum(high, most + Z * error))

    gap = predicted - observed
    spread = np.sqrt(ratio(np.maximum(brier - gap**2, 0.0), n_eff * alone))
    return Figures(
        ece=ece,
        ece_low=np.maximum(ece_low, 0.0),
        ece_high=np.minimum(ece_high, 1.0),
        noise_floor=floor,
        squared_error=_squared_error(table),
        gap=gap,
        gap_low=gap - Z * spread,
        gap_high=gap + Z * spread,
        brier=brier,
        log_loss=log_loss,
        predicted=predicted,
        observed=observed,
        n_eff=n_eff,
        drafted=scalars[..., SCALARS.index("drafted")],
        verified=scalars[..., SCALARS.index("verified")],
        coverage=_undefined(ratio(s["verified"], drafted), drafted > 0),
        status=_status(weight, drafted, s["weight_accepted"], n_eff),
        traffic=traffic,
        bins=table,
    )


def ratio(top: Float, bottom: Float) -> Float:
    """``top / bottom``, 0 where ``bottom`` is not positive."""
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)


def number(value: Any) -> float | None:
    """A float for JSON: None where it is undefined."""
    value = float(value)
    return value if np.isfinite(value) else None


def numbers(values: Float) -> list[Any]:
    """Nested lists of floats for JSON: None where they are undefined."""
    given = np.asarray(values, dtype=np.float64)
    shown = given.astype(object)
    shown[~np.isfinite(given)] = None
    result: list[Any] = shown.tolist()
    return result


def _natural(values: NDArray[np.int64], unit: float) -> Float:
    return values.astype(np.float64) / unit


def _undefined(values: Float, defined: NDArray[np.bool_]) -> Float:
    return np.where(defined, values, np.nan)


def _describes_traffic(s: dict[str, Float]) -> NDArray[np.bool_]:
    """As :func:`calibrator.core.population.window_population`."""
    complete = (s["verified"] == s["drafted"]).all(axis=-1)
    spread = np.sqrt(np.maximum(s["weight_squared"] - s["weight"], 0.0))
    short = s["drafted"] - s["weight"] > 5.0 * spread + MAX_UNSEEN_SHARE * s["drafted"]
    return np.asarray(complete | ~short.any(axis=-1))


def _bins(b: dict[str, Float], traffic: NDArray[np.bool_]) -> Bins:
    mass = np.where(traffic[..., None, None], b["drafted"], b["weight"])
    mass = ratio(mass, np.broadcast_to(mass.sum(axis=-1, keepdims=True), mass.shape))
    kept = np.where(b["weight"] > 0, mass, 0.0)
    return Bins(
        mass=mass,
        share=ratio(kept, np.broadcast_to(kept.sum(axis=-1, keepdims=True), kept.shape)),
        predicted=ratio(b["predicted"], b["weight"]),
        observed=ratio(b["accepted"], b["weight"]),
        n_eff=ratio(b["weight"] ** 2, b["weight_squared"]),
    )


def _squared_error(table: Bins) -> Float:
    usable = table.n_eff > 1.0 + 1e-9
    rate = table.observed
    noise = ratio(rate * (1.0 - rate), np.where(usable, table.n_eff - 1.0, 0.0))
    share = np.where(usable, table.mass, 0.0)
    total = share.sum(axis=-1)
    squared = (share * ((table.predicted - rate) ** 2 - noise)).sum(axis=-1)
    return _undefined(ratio(squared, total), total > 0)


def _bounds(b: dict[str, Float]) -> tuple[Float, Float]:
    """Smallest and largest ECE of all drafted rows that the missing labels allow, shape ``[..., gamma]``.

    A missing label is anything from 0 to 1, a prediction that was not labelled anything in its bin. Source:
    C. F. Manski, "Partial Identification of Probability Distributions", 2003, chapter 1.
    """
    edges = np.linspace(0.0, 1.0, WINDOW_BINS + 1)
    missing = np.maximum(b["drafted"] - b["weight"], 0.0)
    known = b["predicted"] - b["accepted"]
    least = known + missing * (edges[:-1] - 1.0)
    most = known + missing * edges[1:]
    total = (b["weight"] + missing).sum(axis=-1)
    nearest = np.where((least <= 0) & (most >= 0), 0.0, np.minimum(np.abs(least), np.abs(most)))
    farthest = np.maximum(np.abs(least), np.abs(most))
    some = total > 0
    return (
        _undefined(ratio(nearest.sum(axis=-1), total), some),
        _undefined(ratio(farthest.sum(axis=-1), total), some),
    )


def _status(weight: Float, drafted: Float, accepted: Float, n_eff: Float) -> NDArray[np.object_]:
    status = np.full(weight.shape, "ok", dtype=object)
    status[(accepted <= 0) | (accepted >= weight * (1.0 - 1e-12))] = "degenerate"
    status[n_eff < MIN_LABELS] = "insufficient"
    status[(weight <= 0) & (drafted > 0)] = "censored"
    return status
