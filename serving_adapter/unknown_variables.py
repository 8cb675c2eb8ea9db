"""Environment variables that look like options of ours and are none: misspelt names do not go unnoticed."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable

log = logging.getLogger(__name__)

_OTHERS = frozenset({"DSPARK_CONFIG", "DSPARK_CACHE", "DSPARK_SCREENSHOTS"})
"""Read elsewhere than in the settings."""

# What Kubernetes sets in every pod where a service has a name that begins like ours, and what tests read.
_NOT_OURS = re.compile(
    r"^DSPARK_(TEST_.*|(.*_)?SERVICE_(HOST|PORT(_.*)?)|(.*_)?PORT(_\d+_(TCP|UDP|SCTP)(_.*)?)?)$"
)
_told: set[str] = set()


def warn_of_unknown_variables(names: Iterable[str], known: Iterable[str]) -> None:
    """Log a warning for each name with our prefix that is no option, once per process.

    It is no error: other programs may use the prefix.

    Parameters
    ----------
    names
        All variables of the environment.
    known
        Variables that stand for an option.
    """
    options = {*known, *_OTHERS}
    for name in sorted(names):
        if not name.startswith("DSPARK_") or name in options or name in _told or _NOT_OURS.match(name):
            continue
        _told.add(name)
        nearest = difflib.get_close_matches(name, options, n=1, cutoff=0.6)
        meant = f"; did you mean {nearest[0]}?" if nearest else ""
        log.warning("%s is no option and has no effect%s", name, meant)
