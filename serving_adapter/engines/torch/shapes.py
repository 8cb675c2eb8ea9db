"""How the two kinds of OpenAI completion say the same thing."""

from __future__ import annotations

from typing import Any


class Shape:
    """Fields of an answer, whole or in pieces."""

    prefix = kind = piece_kind = ""

    def whole(self, text: str) -> dict[str, Any]:
        """The whole answer."""
        return {"text": text}

    def piece(self, text: str, first: bool) -> dict[str, Any]:  # noqa: ARG002
        """A piece of a stream."""
        return {"text": text}


class CompletionShape(Shape):
    """Of ``/v1/completions``."""

    prefix, kind, piece_kind = "cmpl", "text_completion", "text_completion"


class ChatShape(Shape):
    """Of ``/v1/chat/completions``."""

    prefix, kind, piece_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def whole(self, text: str) -> dict[str, Any]:
        """See :meth:`Shape.whole`."""
        return {"message": {"role": "assistant", "content": text}}

    def piece(self, text: str, first: bool) -> dict[str, Any]:
        """See :meth:`Shape.piece`."""
        return {"delta": ({"role": "assistant"} if first else {}) | {"content": text}}


def usage(prompt: list[int], tokens: list[int]) -> dict[str, int]:
    """Count tokens as OpenAI's answers do."""
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(tokens),
        "total_tokens": len(prompt) + len(tokens),
    }
