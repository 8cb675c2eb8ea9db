"""One self-contained HTML page: tables, reliability diagrams, reasons and the ledger."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment, PackageLoader, select_autoescape

from calibrator.core.report import PositionReport


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """One phase or period: what was measured and what it looks like.

    ``limited`` holds, per position, the held-out ECE that the temperature form leaves: where it is far
    above ``after`` the position is temperature-limited.
    """

    title: str
    text: str
    before: Sequence[PositionReport]
    after: Sequence[PositionReport]
    temperatures: Sequence[float]
    offsets: Sequence[float]
    coverage: Sequence[float | None]
    statuses: Sequence[str]
    version: int
    form: str
    mean_before: float | None
    mean_after: float | None
    mean_noise_floor: float | None
    limited: Sequence[float | None]
    figure_png: bytes
    figure_text: str


@dataclass(frozen=True, slots=True)
class Refresh:
    """One line of the history of refreshes; ``asked`` says who wanted it: the schedule, or an alarm."""

    when: str
    asked: str
    outcome: str
    form: str
    version: int | None
    reasons: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class Alarm:
    """One episode of drift; ``began``, ``alarmed`` and ``ended`` count rounds served by then.

    ``version`` is the set whose predictions were watched, ``ended_by`` the one that came in its place.
    """

    kind: str
    where: str
    version: int | None
    began: int
    alarmed: int
    ended: int | None
    ended_by: int | None
    gap: float | None
    summary: str
    remedy: str


def compared(before: float | None, after: float | None, noise: float | None) -> str:
    """Class of a figure that differs from the one before it by more than the noise, none where it does not.

    >>> compared(0.08, 0.02, 0.01), compared(0.02, 0.08, 0.01), compared(0.08, 0.075, 0.01)
    ('after', 'before', '')
    """
    if before is None or after is None or noise is None or abs(after - before) <= noise:
        return ""
    return "after" if after < before else "before"


_environment = Environment(
    loader=PackageLoader("calibrator.report"),
    autoescape=select_autoescape(),
    trim_blocks=True,
    lstrip_blocks=True,
)


def _figure(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


_environment.filters["figure"] = _figure
_environment.globals["compared"] = compared
_environment.filters["data_uri"] = lambda png: "data:image/png;base64," + base64.b64encode(png).decode()


def render_page(
    title: str,
    subtitle: str,
    sections: Sequence[Section],
    refreshes: Sequence[Refresh],
    ledger: Mapping[str, Any],
    facts: Sequence[tuple[str, str]] = (),
    alarms: Sequence[Alarm] = (),
    about_alarms: str = "",
    no_alarms: str = "No alarm was raised.",
) -> str:
    """Render the page; it needs nothing from anywhere else.

    Parameters
    ----------
    title, subtitle
        Headline and one sentence under it.
    sections
        In order of time.
    refreshes
        Every refresh with its outcome and reasons.
    ledger
        ``emitted``, ``lost``, ``folded``, ``dead_lettered`` and what else should be shown.
    facts
        Label and value of what the page was made from.
    alarms, about_alarms, no_alarms
        Episodes of drift, a sentence about them, and what to say when there are none.
    """
    return _environment.get_template("page.html").render(
        title=title,
        subtitle=subtitle,
        sections=sections,
        refreshes=refreshes,
        ledger=ledger,
        facts=facts,
        alarms=alarms,
        about_alarms=about_alarms,
        no_alarms=no_alarms,
    )
