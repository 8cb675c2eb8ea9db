"""Temperatures against the affine form: on held-out prompts, what ``auto`` takes, and from thin evidence.

    python -m benchmarks.forms [--parts held-out,auto,evidence] [--json]

* ``held-out``: fitted on half of the prompts of a recording, judged on the other half; the difference
  between the forms with a bootstrap interval over prompts.
* ``auto``: what one refresh takes, on the recordings and on traffic of which the truth is known: recorded
  logits, outcomes drawn anew, with all labels or with those that the asynchronous scheduler and an
  exploration of 1 % leave. What a set leaves is its binned ECE against the true survival: no label noise.
* ``evidence``: fitted on few rounds drawn at random over the requests of one half, judged on the other half,
  against the noise floor of independent rounds and that of whole requests.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.estimators import CURVES, serve
from benchmarks.figures import wants_table
from calibrator.core.affine import Prior, fit_affine
from calibrator.core.bootstrap import ece_difference
from calibrator.core.candidate import ProposalOptions
from calibrator.core.doubly_robust import doubly_robust
from calibrator.core.ece import reliability
from calibrator.core.labels import at_risk, drafted, included, prefix_labels
from calibrator.core.likelihood import fit_temperatures_by_likelihood
from calibrator.core.parameter_set import ParameterSet
from calibrator.core.proposal import propose
from calibrator.core.report import mean_ece, mean_noise_floor, position_report
from calibrator.core.soft_labels import soft_outcomes, soft_rows
from calibrator.core.temperature import fit_temperatures
from serving_adapter.contract import Form, Rounds, prefix_survival, sigmoid
from serving_adapter.engines.replay import load_recording
from serving_adapter.engines.replay.records import RECORDINGS

Float = NDArray[np.float64]

BINS = 15
CURVE = "knee at 256, 64 requests"
EXPLORE = 0.01
LOWEST, HIGHEST = 0.6, 2.5
"""Between these the true temperatures of made traffic are drawn, uniform in their logarithm."""

TRUTHS = ("a temperature per position", "one temperature", "right as it is", "affine")
ENOUGH = (300, 1000, None)
"""Rounds that a fit sees; None is half of the requests."""


def halves(name: str, split: int) -> tuple[Rounds, Rounds, NDArray[np.int64]]:
    """Rows to fit and rows to judge, no prompt on both sides, and the prompt of every row to judge."""
    recording = load_recording(name)
    prompt = np.repeat(recording.prompt, np.diff(recording.starts))
    prompts = np.random.default_rng(split).permutation(np.unique(prompt))
    fitting = np.isin(prompt, prompts[: len(prompts) // 2])
    return recording.rounds.take(fitting), recording.rounds.take(~fitting), prompt[~fitting]


def temperature_sets(rows: Rounds) -> dict[str, ParameterSet]:
    """The best temperatures by either objective."""
    labels, none = prefix_labels(rows), np.zeros(rows.gamma)
    ece = fit_temperatures(rows.logits, labels, included(rows), bins=BINS).temperatures
    likelihood = fit_temperatures_by_likelihood(rows.logits, labels, at_risk(rows)).temperatures
    return {
        "temperature, ECE": ParameterSet("temperature", np.array(ece), none),
        "temperature, likelihood": ParameterSet("temperature", np.array(likelihood), none),
    }


def affine_set(rows: Rounds, *, soft: bool = False, prior: Prior | None = None) -> ParameterSet:
    """The affine form fitted to coins, or to acceptance probabilities where there are any."""
    if soft:
        outcome, seen, weight = soft_outcomes(rows)
        fit = fit_affine(rows.logits, outcome, seen, weight, prior=prior)
    else:
        fit = fit_affine(rows.logits, prefix_labels(rows), at_risk(rows), prior=prior)
    return ParameterSet("affine", fit.temperatures, fit.offsets)


def held_out(name: str, splits: int, resamples: int) -> dict[str, Any]:
    """Mean ECE by form over splits, and the difference temperature less affine with its interval."""
    errors: dict[str, list[float]] = {}
    found = []
    for split in range(splits):
        fitting, judging, prompt = halves(name, split)
        temperatures = temperature_sets(fitting)
        sets = {"raw": ParameterSet.identity(fitting.gamma), **temperatures, "affine": affine_set(fitting)}
        survival = {form: parameters.survival(judging) for form, parameters in sets.items()}
        for form, predicted in survival.items():
            errors.setdefault(form, []).append(_mean_ece(predicted, judging))
        best = min(temperatures, key=lambda form: errors[form][-1])  # as the judging rows have it
        change = ece_difference(
            survival["affine"],
            survival[best],
            prefix_labels(judging),
            prompt,
            bins=BINS,
            weights=included(judging),
            resamples=resamples,
            seed=split,
        )
        found.append((change.estimate, change.low, change.high))
    difference = np.array(found, dtype=np.float64)
    return {
        "recording": name,
        "mean ece": {form: float(np.mean(values)) for form, values in errors.items()},
        "difference": difference.mean(axis=0).tolist(),
        "smallest lower end": float(difference[:, 1].min()),
        "splits above zero": int((difference[:, 1] > 0).sum()),
        "splits": splits,
    }


def recorded_refresh(name: str, resamples: int) -> dict[str, Any]:
    """What a refresh from the identity takes on a recording, and what it leaves on held-out requests."""
    rounds = load_recording(name).rounds
    found = propose(rounds, ParameterSet.identity(rounds.gamma), ProposalOptions(resamples=resamples))
    return {
        "recording": name,
        "form": found.form_judged,
        "published": found.publish,
        "before": mean_ece(found.before),
        "after": mean_ece(found.after),
        "noise floor": mean_noise_floor(found.after),
        "reason": found.reasons[0],
    }


@dataclass(frozen=True, slots=True)
class Case:
    """Made traffic: whose logits, what is true, which labels, what is in force, what engines apply."""

    recording: str
    truth: str
    truncated: bool
    affine_in_force: bool = False
    forms: tuple[Form, ...] = ("temperature", "affine")

    @property
    def name(self) -> str:
        labels = f"scheduler, e = {EXPLORE:.0%}" if self.truncated else "all labels"
        extra = ", affine set in force" if self.affine_in_force else ""
        return f"{self.recording}, {self.truth}, {labels}{extra}{'' if len(self.forms) > 1 else ', T only'}"


def cases(recordings: Iterable[str]) -> list[Case]:
    """Every truth and coverage; and two special ones: an affine set in force, temperatures only."""
    made = []
    for recording in recordings:
        for truncated in (False, True):
            made += [Case(recording, truth, truncated) for truth in TRUTHS]
            made.append(Case(recording, TRUTHS[0], truncated, affine_in_force=True))
            made.append(Case(recording, TRUTHS[0], truncated, forms=("temperature",)))
    return made


def true_set(recorded: Rounds, truth: str, random: np.random.Generator) -> ParameterSet:
    """The parameters that outcomes are drawn from."""
    gamma = recorded.gamma
    if truth == "affine":
        return affine_set(recorded)
    t = np.exp(random.uniform(np.log(LOWEST), np.log(HIGHEST), gamma))
    temperatures = {TRUTHS[0]: t, TRUTHS[1]: np.full(gamma, t[0]), TRUTHS[2]: np.ones(gamma)}[truth]
    return ParameterSet("temperature", temperatures, np.zeros(gamma))


def drawn(
    recorded: Rounds, truth: ParameterSet, random: np.random.Generator, explore: float | None = None
) -> Rounds:
    """Recorded logits, outcomes drawn from the truth; cut short by the scheduler if ``explore`` is given."""
    conditional = sigmoid(recorded.logits / truth.temperatures + truth.offsets)
    accepted = np.cumprod(random.random(conditional.shape) < conditional, axis=1).sum(axis=1)
    verified = scheduled = np.full(len(recorded), recorded.gamma)
    if explore is not None:
        make, batch = CURVES[CURVE]
        order = random.permutation(len(recorded))
        scheduled = np.empty(len(recorded), dtype=np.int64)
        scheduled[order] = serve(prefix_survival(sigmoid(recorded.logits))[order], make(), batch)
        verified = np.where(random.random(len(recorded)) < explore, recorded.gamma, scheduled)
    return Rounds.build(
        recorded.logits,
        np.minimum(accepted, verified),
        verified=verified,
        scheduled=scheduled,
        explore=np.full(len(recorded), explore or 0.0),
        request=recorded.request,
        draft_stop=recorded.draft_stop,
        sampling=recorded.sampling,
    )


def made_rounds(case: Case, seed: int) -> tuple[Rounds, ParameterSet]:
    """Rows of made traffic and the truth that they were drawn from."""
    recorded = load_recording(case.recording).rounds
    random = np.random.default_rng(seed)
    truth = true_set(recorded, case.truth, random)
    return drawn(recorded, truth, random, EXPLORE if case.truncated else None), truth


def left(parameters: ParameterSet, rows: Rounds, truth: ParameterSet) -> float:
    """Mean ECE over positions against the true survival of the drafted traffic."""
    predicted, true, inside = parameters.survival(rows), truth.survival(rows), drafted(rows)
    each = [
        reliability(predicted[inside[:, k], k], true[inside[:, k], k], BINS).ece for k in range(rows.gamma)
    ]
    return float(np.mean(each))


def made_refresh(case: Case, seeds: int, resamples: int) -> dict[str, Any]:
    """How often a refresh takes which form and publishes, and what either form and the outcome leave."""
    recorded = load_recording(case.recording).rounds
    in_force = affine_set(recorded) if case.affine_in_force else ParameterSet.identity(recorded.gamma)
    options = ProposalOptions(supported_forms=case.forms, resamples=resamples)
    taken, published, before, after = [], [], [], []
    by_form: dict[str, list[float]] = {form: [] for form in case.forms}
    for seed in range(seeds):
        rows, truth = made_rounds(case, seed)
        found = propose(rows, in_force, options)
        serving = found.parameters if found.publish else in_force
        taken.append(found.form_judged == "temperature")
        published.append(found.publish)
        before.append(left(in_force, rows, truth))
        after.append(left(serving, rows, truth))
        for form, parameters in found.alternatives.items():
            by_form[form].append(left(parameters, rows, truth))
    return {
        "case": case.name,
        "seeds": seeds,
        "temperature taken": float(np.mean(taken)),
        "published": float(np.mean(published)),
        "before": float(np.mean(before)),
        "after": float(np.mean(after)),
        "made worse": int(sum(a > b + 1e-3 for a, b in zip(after, before, strict=True))),
        "by form": {form: float(np.mean(values)) for form, values in by_form.items()},
    }


def evidence(name: str, splits: int) -> dict[str, Any]:
    """Mean ECE from few rounds and many, with its standard error over splits, and both noise floors.

    ``made`` is the same with outcomes drawn from the affine form: what it must lack for want of rounds, and
    what a perfect predictor reads.
    """
    errors: dict[str, list[float]] = {}
    floors = []
    truth = affine_set(load_recording(name).rounds)

    def add(kind: str, parameters: ParameterSet, judging: Rounds) -> Float:
        predicted = parameters.survival(judging)
        errors.setdefault(kind, []).append(_mean_ece(predicted, judging))
        return predicted

    for split in range(splits):
        fitting, judging, _ = halves(name, split)
        random = np.random.default_rng(split)
        order = random.permutation(len(fitting))
        made, made_judging = drawn(fitting, truth, random), drawn(judging, truth, random)
        add("raw", ParameterSet.identity(judging.gamma), judging)
        add("made, perfect", truth, made_judging)
        for enough in ENOUGH:
            chosen, rounds = np.sort(order[:enough]), enough or "half"
            predicted = add(f"coins, {rounds}", affine_set(fitting.take(chosen)), judging)
            if soft_rows(fitting).any():
                add(f"soft, {rounds}", affine_set(fitting.take(chosen), soft=True), judging)
            add(f"made, {rounds}", affine_set(made.take(chosen)), made_judging)
        # Floors of the fit to half of the requests.
        tables = doubly_robust(predicted, judging, BINS)
        of_rounds = mean_noise_floor(position_report(predicted, judging, BINS)) or np.nan
        floors.append((of_rounds, float(np.mean([table.noise_floor for table in tables]))))
    of_rounds, of_requests = np.mean(floors, axis=0)
    return {
        "recording": name,
        "splits": splits,
        "mean ece": {
            kind: [float(np.mean(v)), float(np.std(v, ddof=1) / len(v) ** 0.5)] for kind, v in errors.items()
        },
        "twice the floor of rounds": 2.0 * float(of_rounds),
        "twice the floor of requests": 2.0 * float(of_requests),
    }


def _mean_ece(predicted: Float, judging: Rounds) -> float:
    value = mean_ece(position_report(predicted, judging, BINS))
    assert value is not None
    return value


def print_held_out(rows: list[dict[str, Any]]) -> None:
    forms = list(rows[0]["mean ece"])
    print(f"\nmean ECE on held-out prompts, {rows[0]['splits']} splits; better temperatures less affine")
    print(f"{'':18}" + "".join(f"{form:>26}" for form in forms) + f"{'difference':>32}{'splits above 0':>16}")
    for row in rows:
        estimate, low, high = row["difference"]
        raw = row["mean ece"]["raw"]
        cells = [f"{e:.4f} ({e / raw:.0%})" for e in row["mean ece"].values()]
        print(
            f"{row['recording']:18}"
            + "".join(f"{cell:>26}" for cell in cells)
            + f"{f'{estimate:+.4f} [{low:+.4f}, {high:+.4f}]':>32}{row['splits above zero']:>16}"
        )


def print_auto(recorded: list[dict[str, Any]], made: list[dict[str, Any]]) -> None:
    print("\none refresh with form auto, on recordings (mean ECE held out, noise floor)")
    for row in recorded:
        print(
            f"{row['recording']:18}{row['form']:>14}{'published' if row['published'] else 'kept':>12}"
            f"{row['before']:10.4f} -> {row['after']:.4f} (floor {row['noise floor']:.4f})"
        )
    print("\n... and on made traffic (error against the truth, no noise)")
    print(f"{'':76}{'T taken':>9}{'publ.':>7}{'before':>9}{'after':>9}{'worse':>7}{'T form':>9}{'affine':>9}")
    for row in made:
        by_form = [f"{error:9.4f}" for error in row["by form"].values()]
        print(
            f"{row['case']:76}{row['temperature taken']:9.0%}{row['published']:7.0%}{row['before']:9.4f}"
            f"{row['after']:9.4f}{row['made worse']:7}{''.join(by_form)}"
        )


def print_evidence(rows: list[dict[str, Any]]) -> None:
    kinds = max((list(row["mean ece"]) for row in rows), key=len)
    print(f"\nmean ECE on other requests, {rows[0]['splits']} splits (two standard errors over splits)")
    print(f"{'':18}" + "".join(f"{kind:>20}" for kind in kinds) + f"{'2 floors, rounds':>20}{'requests':>12}")
    for row in rows:
        text = {kind: f"{mean:.4f} ±{2 * error:.4f}" for kind, (mean, error) in row["mean ece"].items()}
        cells = [text.get(kind, "") for kind in kinds]
        print(
            f"{row['recording']:18}"
            + "".join(f"{cell:>20}" for cell in cells)
            + f"{row['twice the floor of rounds']:20.4f}{row['twice the floor of requests']:12.4f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parts", default="held-out,auto,evidence", help="separated by commas")
    parser.add_argument("--recordings", default=",".join(RECORDINGS), help="names, separated by commas")
    parser.add_argument("--made", default="typical,hard", help="recordings whose logits made traffic has")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=40, help="of made traffic, per case")
    parser.add_argument("--resamples", type=int, default=400)
    parser.add_argument("--json", nargs="?", const="-", help="one JSON object on standard output")
    options = parser.parse_args()
    parts, names = options.parts.split(","), options.recordings.split(",")
    report: dict[str, Any] = {"benchmark": "forms"}

    def each(part: str, items: Iterable[Any], measure: Any, *settings: int) -> None:
        report[part] = []
        for item in items:
            print(f"{part}: {item.name if isinstance(item, Case) else item}", file=sys.stderr, flush=True)
            report[part].append(measure(item, *settings))

    if "held-out" in parts:
        each("held-out", names, held_out, options.splits, options.resamples)
    if "auto" in parts:
        each("auto, recorded", names, recorded_refresh, options.resamples)
        each("auto, made", cases(options.made.split(",")), made_refresh, options.seeds, options.resamples)
    if "evidence" in parts:
        each("evidence", names, evidence, options.splits)
    if not wants_table(report, options.json):
        return
    if "held-out" in parts:
        print_held_out(report["held-out"])
    if "auto" in parts:
        print_auto(report["auto, recorded"], report["auto, made"])
    if "evidence" in parts:
        print_evidence(report["evidence"])


if __name__ == "__main__":
    main()
