"""Tables of operations: schedules, runs, rollouts."""

from __future__ import annotations
