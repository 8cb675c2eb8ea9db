"""What a reader of a report asks first, answered in words from its numbers."""

from __future__ import annotations

from calibrator.report.acceptance import told_acceptance
from calibrator.report.outcomes import PUBLISHED, advice, kept_groups, named_positions, unpublished
from calibrator.report.words import Answer, Moment, Numbers, moments_of, place
from calibrator.report.worth import worth

SHOWN_REASONS = 3


def answers(numbers: Numbers) -> list[Answer]:
    """Answer the three questions of a report."""
    return [worth(numbers), _drifted(numbers, moments_of(numbers)), _unpublished(numbers)]


def _drifted(numbers: Numbers, at: Moment) -> Answer:
    question, found = "What drifted?", numbers["episodes"]
    acceptance = told_acceptance(numbers)
    if not found:
        text = "No alarm of calibration, acceptance, traffic or step costs."
        return Answer(
            question, "no alarm, but acceptance moved" if acceptance else "nothing", (text, *acceptance)
        )
    lasting = sum(each["ended_at"] is None for each in found)
    lines = []
    for kind in dict.fromkeys(each["kind"] for each in found):
        mine = [each for each in found if each["kind"] == kind]
        where = ", ".join(dict.fromkeys(place(each) for each in mine))
        begun, ended = min(each["started_at"] for each in mine), [each["ended_at"] for each in mine]
        end = "still open" if None in ended else f"over at {at(max(ended))}"
        helps = next((e for e in reversed(mine) if e["ended_at"] is None), mine[-1])["remedy"].split(":")[0]
        lines.append(f"{kind.capitalize()} ({where}): since about {at(begun)}, {end}. What helps: {helps}.")
    return Answer(question, f"{lasting} open, {len(found) - lasting} ended", (*lines, *acceptance))


def _unpublished(numbers: Numbers) -> Answer:
    question, tried = "Was anything published, and if not, why?", numbers["refreshes"]
    if not tried:
        return Answer(question, "nothing was tried", ("No refresh began in this period.",))
    published = sum(each["outcome"] == PUBLISHED for each in tried)
    word = f"{published} of {len(tried)} refreshes published" if published else "no refresh published"
    found = unpublished(numbers)
    lines = [
        f"{str(each['outcome']).replace('_', ' ').capitalize()}, {each['count']} of {len(tried)} refreshes: "
        f"{each['reason']}."
        for each in found[:SHOWN_REASONS]
    ]
    more = sum(each["count"] for each in found[SHOWN_REASONS:])
    if more:
        lines.append(f"{more} more of {len(tried)} for other reasons, below.")
    for group in kept_groups(numbers):
        who, rest = named_positions(group["positions"]).capitalize(), advice(numbers, group)
        had = "it had" if len(group["positions"]) == 1 else "they had"
        when = "also at the latest" if group["latest"] else "not at the latest"
        lines.append(
            f"{who} kept what {had}, whatever else was published, at {group['count']} of {len(tried)} "
            f"refreshes, {when}: {group['reason']}.{' ' if rest else ''}{rest}"
        )
    return Answer(question, word, lines or ["Every refresh published something."])
