"""What a reader of a report asks first, answered in words from its numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Numbers = Mapping[str, Any]
Moment = Callable[[float | None], str]

POLICIES = {
    "identity": "raw head",
    "in force": "set in force at that refresh",
    "candidate": "set fitted by that refresh",
    "best monotone map": "best map of the confidences",
    "perfect foresight": "perfect foresight",
}
"""What the policies of a value table are called on a page."""

IN_FORCE = "in force"
REFUSED = "position "
"""Reasons that begin so say why a position kept the parameters that it had."""
PUBLISHED = "published"
_SHORT_SECONDS = 7_200.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A question, the answer in a word or two, and what it rests on."""

    question: str
    word: str
    text: Sequence[str]


def moments_of(numbers: Numbers) -> Moment:
    """How to tell a time of this period in one cell of a table: with seconds when the period is short.

    >>> moments_of({"from": 0.0, "to": 600.0})(61.0)
    '00:01:01'
    >>> moments_of({"from": 0.0, "to": 200_000.0})(86_461.0)
    '01-02 00:01'
    """
    first, last = (datetime.fromtimestamp(numbers[name], UTC) for name in ("from", "to"))
    short = numbers["to"] - numbers["from"] <= _SHORT_SECONDS
    style = ("" if first.date() == last.date() else "%m-%d ") + ("%H:%M:%S" if short else "%H:%M")

    def tell(value: float | None) -> str:
        if value is None:
            return "–"
        at = datetime.fromtimestamp(value, UTC)
        day = "" if style.startswith("%m") or at.date() == first.date() else f"{at:%m-%d} "
        return day + at.strftime(style)

    return tell


def answers(numbers: Numbers) -> list[Answer]:
    """Answer the three questions of a report."""
    at = moments_of(numbers)
    return [_worth(numbers), _drifted(numbers, at), _unpublished(numbers)]


def _worth(numbers: Numbers) -> Answer:
    error, better, few = _error(numbers)
    speed, faster = _speed(numbers)
    if better is False or faster is False:
        word = "not by these figures"
    elif better and faster:
        word = "yes: error and speed"
    elif better:
        word = "yes, for the error"
    elif faster:
        word = "yes, for speed"
    else:
        word = "not shown"
    return Answer("Is recalibrating worth it?", f"{word}, on few labels" if few else word, (error, speed))


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
            f"fit had seen: mean ECE {score['ece']:.4f}, {against['ece_difference']:+.4f} against the raw "
            f"head ({low:+.4f} to {high:+.4f}, {against['requests']:,} requests): "
            f"{_told(verdict, 'better', 'worse')}. Enough labels at {sure} of {positions} positions."
        )
        return text, verdict, 2 * sure < positions
    known = [v for v in numbers["versions"] if v["ece_before"] is not None and v["ece_after"] is not None]
    if not known:
        return "Error: not known, no version was published.", None, False
    newest = known[-1]
    text = (
        f"Error: when version {newest['version']} was made, mean ECE went from {newest['ece_before']:.4f} to "
        f"{newest['ece_after']:.4f} on requests that the fit had not seen ({newest['rounds']:,} rounds). No "
        "rounds have come since that could score it."
    )
    return text, None, False


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
        f"Speed: the scheduler replayed with {value['concurrency']:,} requests at a time gives "
        f"{100 * (ratio['estimate'] - 1):+.1f} % tokens/s against the raw head{between}: "
        f"{_told(verdict, 'faster', 'slower')}."
    ), verdict


def _told(verdict: bool | None, good: str, bad: str) -> str:
    return "no difference shown" if verdict is None else good if verdict else bad


def _drifted(numbers: Numbers, at: Moment) -> Answer:
    question, found = "What drifted?", numbers["episodes"]
    if not found:
        return Answer(question, "nothing", ("No alarm of calibration, acceptance, traffic or step costs.",))
    lasting = sum(each["ended_at"] is None for each in found)
    told = []
    for kind in dict.fromkeys(each["kind"] for each in found):
        mine = [each for each in found if each["kind"] == kind]
        where = ", ".join(dict.fromkeys(place(each) for each in mine))
        begun, ended = min(each["started_at"] for each in mine), [each["ended_at"] for each in mine]
        end = "still open" if None in ended else f"over at {at(max(ended))}"
        helps = next((e for e in reversed(mine) if e["ended_at"] is None), mine[-1])["remedy"].split(":")[0]
        told.append(f"{kind.capitalize()} ({where}): since about {at(begun)}, {end}. What helps: {helps}.")
    return Answer(question, f"{lasting} open, {len(found) - lasting} ended", told)


def place(episode: Numbers) -> str:
    """Where an episode is, in words."""
    parts = [episode["segment"] or "all traffic"]
    for name, word in (
        ("position", "position"),
        ("load_regime", "load regime"),
        ("context_bucket", "context bucket"),
    ):
        if episode[name] is not None:
            parts.append(f"{word} {episode[name]}")
    return " ".join(parts)


def _unpublished(numbers: Numbers) -> Answer:
    question, tried = "Was anything published, and if not, why?", numbers["refreshes"]
    if not tried:
        return Answer(question, "nothing was tried", ("No refresh began in this period.",))
    published = sum(each["outcome"] == PUBLISHED for each in tried)
    word = f"{published} of {len(tried)} refreshes published" if published else "no refresh published"
    told = [
        f"{str(each['outcome']).capitalize()}, {each['count']} of {len(tried)} times: {each['reason']}."
        for each in numbers["not_published"][:3]
    ]
    more = len(numbers["not_published"]) - len(told)
    if more > 0:
        told.append(f"And {more} more reasons, below.")
    kept = refused_positions(numbers)
    if kept:
        named = ", ".join(dict.fromkeys(str(each["position"]) for each in kept))
        told.append(f"Positions that kept what they had at some refresh for want of evidence: {named}.")
    return Answer(question, word, told or ["Every refresh published something."])


def refused_positions(numbers: Numbers) -> list[dict[str, Any]]:
    """Positions that a refresh left as they were: how often, when last, and why then."""
    found: dict[int, dict[str, Any]] = {}
    for refresh in numbers["refreshes"]:
        mine: dict[int, list[str]] = {}
        for reason in refresh["reasons"]:
            head, colon, why = reason.removeprefix(REFUSED).partition(": ")
            if reason.startswith(REFUSED) and colon and head.isdecimal():
                mine.setdefault(int(head), []).append(why)
        for position, why in mine.items():
            entry = found.setdefault(position, {"position": position, "count": 0})
            entry.update(count=entry["count"] + 1, last=refresh["started"], reasons=why)
    return [found[position] for position in sorted(found)]
