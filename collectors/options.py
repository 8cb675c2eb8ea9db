"""Options of the ingest pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from calibrator.core.labels import EndOfSequence
from calibrator.store.windows import HOUR


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """What a pipeline does with rows; every collector of a database must be given the same.

    Parameters
    ----------
    window_seconds
        Length of a window; a divisor of 3600.
    half_life_seconds
        Age at which a row's chance to stay in the sample has halved. Strata keep the value that they were
        made with (:func:`calibrator.store.sample.reset` draws anew).
    sample_rows, step_rows
        Rows kept per stratum of rounds and of steps.
    end_of_sequence
        Which positions behind a stop token count.
    group
        Whose positions these are: two groups read the same topic independently, into different databases.
    future_seconds, past_seconds
        Rows stamped further ahead, or longer ago, are folded at their arrival.
    max_deployments
        Deployments that messages may register by themselves.
    dead_letters
        Refused messages listed in the database.
    """

    window_seconds: int = 60
    half_life_seconds: float = 6 * 3600.0
    sample_rows: int = 20_000
    step_rows: int = 2_000
    end_of_sequence: EndOfSequence = "draft_stop"
    group: str = "dspark-calibrator"
    future_seconds: float = 300.0
    past_seconds: float = 86_400.0
    max_deployments: int = 256
    dead_letters: int = 10_000

    def __post_init__(self) -> None:
        if self.window_seconds < 1 or HOUR % self.window_seconds:
            raise ValueError(f"window_seconds: got {self.window_seconds}, expected a divisor of {HOUR}")
        for name in ("half_life_seconds", "sample_rows", "step_rows", "max_deployments", "dead_letters"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected more than 0")
