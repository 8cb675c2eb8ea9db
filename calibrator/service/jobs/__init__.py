"""Scheduled and requested recalibration: ticks, a queue in the database, and who works it off."""

from calibrator.service.jobs.recalibration import Recalibration, Result, Work
from calibrator.service.jobs.runner import JobRunner
from calibrator.store.runs import request_run

__all__ = ["JobRunner", "Recalibration", "Result", "Work", "request_run"]
