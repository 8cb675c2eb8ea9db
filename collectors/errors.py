"""Errors of the collectors: one root."""

from __future__ import annotations

from pathlib import Path


class CollectorError(Exception):
    """Anything a collector could not do."""


class RecordError(CollectorError):
    """A records file that cannot be used, in one line: file, place in it, field and value.

    Parameters
    ----------
    path
        The file.
    problem
        What is wrong, beginning with the place (``line 3``, ``row 7``) where there is one.
    """

    def __init__(self, path: str | Path, problem: str) -> None:
        super().__init__(f"{path}: {' '.join(problem.split())}")
        self.path = str(path)
        self.problem = problem
