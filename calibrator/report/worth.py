"""Whether recalibrating was worth it: error, speed, and the price of the labels that it takes."""

from __future__ import annotations

from typing import Any

from calibrator.core.report import MIN_LABELS
from calibrator.report.words import IN_FORCE, Answer, Numbers, measured, told


def worth(numbers: Numbers) -> Answer:
    """Answer from the newest scored version and the newest replay of the scheduler."""
    error, better, few = _error(numbers)
    speed, faster = _speed(numbers)
    lines = [error, speed]
    net = net_speed(numbers)
    explored = _exploring(numbers, net)
    if explored:
        lines.append(explored)
    paid = faster and net is not None and net["estimate"] < 0
    if better is False or faster is False:
        word = "not by these figures"
    elif better and faster:
        word = (
            "yes, for the error; exploring costs more speed than it brings"
            if paid
            else "yes: error and speed"
        )
    elif better:
        word = "yes, for the error"
    elif faster:
        word = "not shown: exploring costs more speed than it brings" if paid else "yes, for speed"
    else:
        word = "not shown"
    return Answer("Is recalibrating worth it?", f"{word}, on few labels" if few else word, lines)


def net_speed(numbers: Numbers) -> dict[str, Any] | None:
    """Calibrating and exploring together, as changes of tokens/s; None unless one refresh measured both.

    Both are relative to a schedule that explores nothing, so the factors multiply. The interval is that of
    calibrating: the price of exploring is an estimate without one.
    """
    value = next((each for each in numbers["value"] if each["policy"] == IN_FORCE), None)
    explored = numbers.get("exploration") or []
    if value is None or not explored or explored[-1]["relative_speed"] is None:
        return None
    if (numbers.get("measured_at") or {}).get("value") != explored[-1]["at"]:
        return None
    ratio, price = value["against_identity"], 1.0 + explored[-1]["relative_speed"]
    return {
        name: None if ratio[name] is None else ratio[name] * price - 1.0
        for name in ("estimate", "low", "high")
    }


def _error(numbers: Numbers) -> tuple[str, bool | None, bool]:
    """What the newest scored version did to the error, whether it did good, and whether labels are few."""
    for score in reversed(numbers["prequential"]):
        against = score.get("against_raw")
        if not against or against["ece_low"] is None or against["ece_high"] is None:
            continue
        low, high = against["ece_low"], against["ece_high"]
        verdict = True if high < 0 else False if low > 0 else None
        sure, positions = sum(each["status"] == "ok" for each in score["positions"]), len(score["positions"])
        text = (
            f"Error: version {score['version']} on the {score['rows']:,} rounds that came after it, which no "
            f"fit had seen: mean ECE {score['ece']:.4f}{_floor(score)}, {against['ece_difference']:+.4f} "
            f"against the raw head ({low:+.4f} to {high:+.4f}, {against['requests']:,} requests): "
            f"{told(verdict, 'better', 'worse')}. These rounds give {sure} of {positions} positions the "
            f"{MIN_LABELS:.0f} effective labels that an ECE of its own takes."
        )
        return text, verdict, 2 * sure < positions
    known = [v for v in numbers["versions"] if v["ece_before"] is not None and v["ece_after"] is not None]
    if not known:
        return "Error: not known, no version was published.", None, False
    newest = known[-1]
    text = (
        f"Error: when version {newest['version']} was made, mean ECE went from {newest['ece_before']:.4f} to "
        f"{newest['ece_after']:.4f}{_floor(newest)} on requests that the fit had not seen "
        f"({newest['rounds']:,} rounds). No rounds have come since that could score it."
    )
    return text, None, False


def _floor(figures: Numbers) -> str:
    floor = figures.get("noise_floor")
    return "" if floor is None else f" (noise floor {floor:.4f})"


def _speed(numbers: Numbers) -> tuple[str, bool | None]:
    value = next((each for each in numbers["value"] if each["policy"] == IN_FORCE), None)
    if value is None:
        return "Speed: not known, no refresh had both a version in force and a throughput curve.", None
    ratio = value["against_identity"]
    low, high = ratio["low"], ratio["high"]
    known = low is not None and high is not None
    verdict = (True if low > 1 else False if high < 1 else None) if known else None
    between = f" ({100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %)" if known else ""
    return (
        f"Speed: the scheduler replayed with {value['concurrency']:,} requests at a time, "
        f"{measured(numbers, 'value')}: {100 * (ratio['estimate'] - 1):+.1f} % tokens/s against the raw "
        f"head{between}: {told(verdict, 'faster', 'slower')}."
    ), verdict


def _exploring(numbers: Numbers, net: dict[str, Any] | None) -> str:
    """What exploring costs, and what both come to."""
    explored = numbers.get("exploration") or []
    if not explored or explored[-1]["relative_speed"] is None:
        return ""
    latest = explored[-1]
    share, change = 100 * latest["explore"], 100 * latest["relative_speed"]
    price = f"Exploring {share:.3g} % of rounds: {change:+.1f} % tokens/s"
    buys = "it buys the labels behind the schedule, without which neither error nor drift could be seen"
    if net is None:
        known = (numbers.get("measured_at") or {}).get("value") is not None
        apart = " (not added to the speed above: another refresh measured it)" if known else ""
        return f"{price}{apart}; {buys}."
    between = "" if net["low"] is None else f", {100 * net['low']:+.1f} to {100 * net['high']:+.1f} %"
    return (
        f"{price}; {buys}. Both together: {100 * net['estimate']:+.1f} %{between} against the raw head that "
        "explores nothing (the price of exploring is an estimate without an interval)."
    )
