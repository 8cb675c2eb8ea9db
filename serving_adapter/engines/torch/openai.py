"""Request and response bodies of the OpenAI-compatible endpoint.

What this engine cannot do is refused by name, not ignored: a client that asks for ``top_p`` or ``stop``
would otherwise get something else than it asked for.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec


class BadRequestError(ValueError):
    """A request body that cannot be served; the message names the field."""


class _Common(msgspec.Struct, kw_only=True):
    model: str = ""
    max_tokens: int | None = None
    temperature: float = 1.0
    seed: int | None = None
    stream: bool = False
    return_token_ids: bool = False
    segment: str = "default"
    n: int | None = 1
    best_of: int | None = 1
    top_p: float | None = 1.0
    top_k: int | None = -1
    stop: str | list[str] | None = None
    logprobs: bool | int | None = None
    echo: bool | None = False
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    logit_bias: dict[str, float] | None = None
    tools: list[Any] | None = None

    def check(self) -> None:
        """Refuse what would change the output in a way this engine does not have."""
        served = {
            "n": self.n in (None, 1),
            "best_of": self.best_of in (None, 1),
            "top_p": self.top_p in (None, 1.0),
            "top_k": self.top_k in (None, 0, -1),
            "stop": not self.stop,
            "logprobs": not self.logprobs,
            "echo": not self.echo,
            "presence_penalty": not self.presence_penalty,
            "frequency_penalty": not self.frequency_penalty,
            "logit_bias": not self.logit_bias,
            "tools": not self.tools,
        }
        for name, fine in served.items():
            if not fine:
                raise BadRequestError(f"{name}: got {getattr(self, name)!r}, which this engine does not have")
        if not 1 <= len(self.segment) <= 128:
            raise BadRequestError("segment: expected a label of 1 to 128 characters")


class CompletionBody(_Common, kw_only=True):
    """Body of ``POST /v1/completions``; a prompt is text or tokens."""

    prompt: str | list[int]


class ContentPart(msgspec.Struct):
    """Part of a message."""

    type: str
    text: str = ""


class Message(msgspec.Struct):
    """One message of a chat."""

    role: str
    content: str | list[ContentPart]

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, str):
            return self.content
        for part in self.content:
            if part.type != "text":
                raise BadRequestError(f"messages: got a part of type {part.type!r}, expected text")
        return "".join(part.text for part in self.content)


class ChatBody(_Common, kw_only=True):
    """Body of ``POST /v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: int | None = None


_Body = TypeVar("_Body", bound=_Common)


def decode_completion(body: bytes) -> CompletionBody:
    """Read and check a completion request.

    Raises
    ------
    BadRequestError
        Naming the field.
    """
    decoded = _decode(body, CompletionBody)
    # As OpenAI's endpoint has it: a completion without a limit is short.
    decoded.max_tokens = 16 if decoded.max_tokens is None else decoded.max_tokens
    return decoded


def decode_chat(body: bytes) -> ChatBody:
    """Read and check a chat request; without a limit the answer may fill the context."""
    decoded = _decode(body, ChatBody)
    if not decoded.messages:
        raise BadRequestError("messages: got none, expected at least one")
    if decoded.max_completion_tokens is not None:
        decoded.max_tokens = decoded.max_completion_tokens
    return decoded


def _decode(body: bytes, kind: type[_Body]) -> _Body:
    try:
        decoded = msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(str(error)) from error
    decoded.check()
    return decoded


def error_body(message: str, kind: str, code: int) -> dict[str, Any]:
    """Error in OpenAI's form."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
