"""Text and tokens: a tokenizer that several threads share, and text that grows with its tokens."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any


class Texts:
    """One tokenizer for all threads of a front end; the fast ones are not made for that.

    Parameters
    ----------
    tokenizer
        A transformers tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()

    @property
    def has_chat(self) -> bool:
        """Whether the model says how a chat is written."""
        return bool(getattr(self._tokenizer, "chat_template", None))

    def encode(self, text: str) -> list[int]:
        """Tokens of a text."""
        with self._lock:
            return [int(token) for token in self._tokenizer(text)["input_ids"]]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of a chat that the model is to answer."""
        with self._lock:
            text = self._tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=False
            )
            return [int(token) for token in self._tokenizer(text, add_special_tokens=False)["input_ids"]]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens without those that only steer."""
        with self._lock:
            return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))


class TextStream:
    """Turns tokens into text piece by piece; the pieces together are the text of all tokens.

    A character may take several tokens: half of one is held back until the rest has come.
    """

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._tokens: list[int] = []
        self._settled = 0  # tokens whose text was given out
        self._before = 0  # where decoding begins: a decoder needs some tokens in front, for spaces

    def push(self, tokens: Sequence[int], *, last: bool = False) -> str:
        """Add tokens and return the text that became settled."""
        self._tokens.extend(tokens)
        known = self._texts.decode(self._tokens[self._before : self._settled])
        text = self._texts.decode(self._tokens[self._before :])
        if text.endswith("\ufffd") and not last:
            return ""
        self._before, self._settled = self._settled, len(self._tokens)
        return text[len(known) :]
