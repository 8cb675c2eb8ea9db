"""Requests: what a client asks for, and how far it has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FinishReason = Literal["stop", "length", "cancelled"]

OnTokens = Callable[[Sequence[int], FinishReason | None], None]
"""Called from the engine's thread with new tokens, and with the reason when the request has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """What to generate.

    Parameters
    ----------
    request_id
        Unique among running requests; only its salted hash leaves the process.
    prompt
        Tokens, at least one.
    max_tokens
        Most tokens to generate, at least 1.
    temperature
        Sampling temperature, 0 for greedy.
    seed
        The same seed, prompt, drafter and schedule give the same tokens; None draws a seed.
    stop_tokens
        Tokens that end the output and are part of it.
    segment
        Label that calibration figures are kept apart by.
    on_tokens
        Where new tokens go as they come.

    Raises
    ------
    ValueError
        Naming what is out of range.
    """

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    stop_tokens: frozenset[int] = frozenset()
    segment: str = "default"
    on_tokens: OnTokens | None = None

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("prompt: got no tokens, expected at least one")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens: got {self.max_tokens}, expected at least 1")
        if not 0 <= self.temperature <= 100:
            raise ValueError(f"temperature: got {self.temperature}, expected a number in [0, 100]")
        if self.seed is not None and self.seed < 0:
            raise ValueError(f"seed: got {self.seed}, expected a whole number >= 0")


@dataclass(slots=True, eq=False)
class RunningRequest:
    """A request in the engine: ``tokens`` are prompt and output, the last one the anchor."""

    request: GenerationRequest
    hash: int
    tokens: list[int]
    random: np.random.Generator
    rounds: int = 0
    finished: FinishReason | None = None
    _prompt_length: int = field(init=False)

    def __post_init__(self) -> None:
        self._prompt_length = len(self.request.prompt)

    @classmethod
    def start(cls, request: GenerationRequest, hashed: int) -> RunningRequest:
        """Begin with the prompt."""
        random = np.random.Generator(np.random.Philox(request.seed))
        return cls(request, hashed, list(request.prompt), random)

    @property
    def output(self) -> list[int]:
        """Tokens generated so far."""
        return self.tokens[self._prompt_length :]

    @property
    def anchor(self) -> int:
        """Position of the last token."""
        return len(self.tokens) - 1

    def uniforms(self, gamma: int) -> NDArray[np.float64]:
        """Numbers in [0, 1) for one round: gamma to draft with, gamma to accept with, one for the bonus.

        Always as many, so that what one round needs does not shift the numbers of the next.
        """
        return self.random.random(2 * gamma + 1)

    def append(self, tokens: Sequence[int]) -> None:
        """Take committed tokens up to the first stop token and to the most that was asked for."""
        room = self.request.max_tokens - (len(self.tokens) - self._prompt_length)
        taken: list[int] = []
        for token in tokens[:room]:
            taken.append(int(token))
            if token in self.request.stop_tokens:
                self.finished = "stop"
                break
        self.tokens.extend(taken)
        if self.finished is None and len(taken) == room:
            self.finished = "length"
        if self.request.on_tokens is not None:
            self.request.on_tokens(taken, self.finished)

    def cancel(self) -> None:
        """End now, without further tokens."""
        self.finished = "cancelled"
        if self.request.on_tokens is not None:
            self.request.on_tokens((), self.finished)


def first_stop(draft: Sequence[int], stop_tokens: frozenset[int]) -> int | None:
    """Zero-based place of the first stop token in a draft."""
    return next((k for k, token in enumerate(draft) if token in stop_tokens), None)
