"""Recorded rounds of a real model, served as a live engine."""

from serving_adapter.engines.replay.cost import (
    CostSamples,
    Machine,
    knee_curve,
    load_cost_samples,
    measured_curve,
)
from serving_adapter.engines.replay.drift import DriftScript, Phase, Traffic
from serving_adapter.engines.replay.engine import AdapterFace, ReplayEngine, StepResult, replay_identity
from serving_adapter.engines.replay.ledger import Ledger
from serving_adapter.engines.replay.records import RECORDINGS, Recording, load_recording, split_requests

__all__ = [
    "RECORDINGS",
    "AdapterFace",
    "CostSamples",
    "DriftScript",
    "Ledger",
    "Machine",
    "Phase",
    "Recording",
    "ReplayEngine",
    "StepResult",
    "Traffic",
    "knee_curve",
    "load_cost_samples",
    "load_recording",
    "measured_curve",
    "replay_identity",
    "split_requests",
]
