"""Request and response bodies of the OpenAI-compatible endpoint.

What this engine cannot do is refused by name, not ignored: a client that asks for ``top_p`` or ``stop``
would otherwise get something else than it asked for. That goes for every field it does not know, unless the
value is null, which asks for nothing; ``user`` and ``metadata`` change no output and are taken as read.
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import msgspec


class BadRequestError(ValueError):
    """A request body that cannot be served; the message names the field, and so does ``param``."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """What a stream tells besides text: with ``include_usage``, its last chunk counts tokens."""

    include_usage: bool = False


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
    stream_options: StreamOptions | None = None
    user: Any = None
    metadata: Any = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that counts tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

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
                raise BadRequestError(
                    f"{name}: got {getattr(self, name)!r}, which this engine does not have", name
                )
        if self.stream_options is not None and not self.stream:
            raise BadRequestError("stream_options: expected none without stream", "stream_options")
        if not 1 <= len(self.segment) <= 128:
            raise BadRequestError("segment: expected a label of 1 to 128 characters", "segment")


class CompletionBody(_Common, kw_only=True):
    """Body of ``POST /v1/completions``; a prompt is text or tokens."""

    prompt: str | list[int]


class ContentPart(msgspec.Struct):
    """Part of a message."""

    type: str
    text: str = ""


class Message(msgspec.Struct):
    """One message of a chat; ``developer`` is the newer name of ``system``."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPart] | None = None

    @property
    def text(self) -> str:
        """The content as one text; an assistant's may be null, which says nothing."""
        if self.content is None:
            return ""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)

    @property
    def template_role(self) -> str:
        """The role as chat templates know it."""
        return "system" if self.role == "developer" else self.role

    def check(self, place: str) -> None:
        """Refuse what no chat template here can write; ``place`` names the message."""
        if self.content is None and self.role != "assistant":
            raise BadRequestError(f"{place}.content: got none, expected text", "messages")
        for part in self.content if isinstance(self.content, list) else ():
            if part.type != "text":
                raise BadRequestError(
                    f"{place}.content: got a part of type {part.type!r}, expected text", "messages"
                )


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
        raise BadRequestError("messages: got none, expected at least one", "messages")
    for number, message in enumerate(decoded.messages):
        message.check(f"messages[{number}]")
    if decoded.max_completion_tokens is not None:
        decoded.max_tokens = decoded.max_completion_tokens
    return decoded


def _decode(body: bytes, kind: type[_Body]) -> _Body:
    try:
        given = msgspec.json.decode(body)
        if isinstance(given, dict):
            given = _known(given, kind)
            if isinstance(given.get("messages"), list):
                given["messages"] = [
                    _known(message, Message, f"messages[{number}].") if isinstance(message, dict) else message
                    for number, message in enumerate(given["messages"])
                ]
        decoded = msgspec.convert(given, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(str(error)) from error
    decoded.check()
    return decoded


def _known(given: dict[str, Any], kind: type[msgspec.Struct], place: str = "") -> dict[str, Any]:
    """The fields that are there: null asks for the default, and any other unknown field is refused."""
    kept = {name: value for name, value in given.items() if value is not None}
    for name in kept:
        if name not in kind.__struct_fields__:
            raise BadRequestError(f"{place}{name}: this engine does not have it", name)
    return kept


def error_body(message: str, kind: str, code: int | str, param: str | None = None) -> dict[str, Any]:
    """Error in OpenAI's form."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
