"""ECE with the noise taken out, and an interval that holds what it says.

Binned ECE adds up absolute gaps, and the absolute value of a noisy gap is too large on average. Here the gaps
of the bins are drawn from one normal population whose mean and spread are learnt from them (an empirical
Bayes model of 10 to 20 numbers): what the noise explains is shrunk away, what it cannot explain stays.
Source of the model: D. B. Rubin, "Estimation in parallel randomized experiments", 1981.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float = NDArray[np.float64]

SPREADS = 60
LARGEST_SPREAD = 0.5


@dataclass(frozen=True, slots=True)
class DebiasedEce:
    """Posterior mean of the ECE and its interval; all None without a usable bin."""

    estimate: float | None
    low: float | None
    high: float | None


def debiased_ece(
    shares: ArrayLike,
    gaps: ArrayLike,
    variances: ArrayLike,
    *,
    confidence: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> DebiasedEce:
    """Estimate ``sum share * |gap|`` from gaps with errors.

    Parameters
    ----------
    shares
        Mass of each bin, shape ``[bins]``; only ratios matter. Bins of mass 0 are left out.
    gaps
        Estimated mean prediction less mean label per bin, shape ``[bins]``.
    variances
        Squared standard errors of the gaps, shape ``[bins]``, not negative.
    confidence, draws, seed
        Of the interval, from draws of all gaps together.

    >>> rng = np.random.default_rng(0)
    >>> noise = rng.normal(0, 0.05, size=(200, 20))
    >>> shares, variances = np.full(20, 0.05), np.full(20, 0.05**2)
    >>> plain = np.abs(noise).mean()
    >>> estimates = [debiased_ece(shares, each, variances).estimate for each in noise]
    >>> float(np.mean(estimates)) < 0.5 * plain
    True
    """
    s, g, v = (np.asarray(x, dtype=np.float64) for x in (shares, gaps, variances))
    used = (s > 0) & np.isfinite(g) & np.isfinite(v)
    if not used.any():
        return DebiasedEce(None, None, None)
    s, g, v = s[used] / s[used].sum(), g[used], np.maximum(v[used], 1e-12)

    # Posterior over the spread of the true gaps (uniform prior), the mean integrated out.
    spread = np.linspace(0.0, 1.0, SPREADS) ** 2 * LARGEST_SPREAD
    steps = np.gradient(spread)
    precision = 1.0 / (spread[:, None] ** 2 + v)
    total = precision.sum(axis=1)
    mean = (precision * g).sum(axis=1) / total
    fit = np.log(precision).sum(axis=1) - (precision * (g - mean[:, None]) ** 2).sum(axis=1) - np.log(total)
    posterior = np.exp(0.5 * (fit - fit.max())) * steps
    generator = np.random.default_rng(seed)
    chosen = generator.choice(SPREADS, size=draws, p=posterior / posterior.sum())

    centre = mean[chosen] + generator.standard_normal(draws) / np.sqrt(total[chosen])
    between = spread[chosen][:, None] ** 2
    kept = between / (between + v)
    location = kept * g + (1.0 - kept) * centre[:, None]
    true = location + np.sqrt(kept * v) * generator.standard_normal((draws, len(g)))
    ece = np.abs(true) @ s
    tail = 0.5 * (1.0 - confidence)
    low, high = np.quantile(ece, (tail, 1.0 - tail))
    return DebiasedEce(float(ece.mean()), float(low), float(high))
