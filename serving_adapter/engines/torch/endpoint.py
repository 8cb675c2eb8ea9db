"""A small OpenAI-compatible HTTP endpoint over one engine, on the standard library alone.

``POST /v1/completions``, ``POST /v1/chat/completions`` (both also streaming), ``GET /v1/models``,
``GET /health``, ``GET /stats``. For driving the engine, not for the open internet: it listens where it is
told to and knows no users.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from serving_adapter.engines.torch.openai import (
    BadRequestError,
    ChatBody,
    CompletionBody,
    decode_chat,
    decode_completion,
    error_body,
)
from serving_adapter.engines.torch.service import (
    EngineFailedError,
    EngineService,
    Generation,
    OverloadedError,
)
from serving_adapter.engines.torch.text import TextStream

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 4 * 1024 * 1024
READ_SECONDS = 30.0
"""A client that sends nothing for so long is hung up on."""


class Endpoint:
    """Serves an engine over HTTP.

    Parameters
    ----------
    service
        A started engine service.
    host, port
        Where to listen; port 0 takes a free one, see :attr:`port`.
    """

    def __init__(self, service: EngineService, host: str = "127.0.0.1", port: int = 8000) -> None:
        self.service = service
        self._server = _Server((host, port), service)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="dspark-endpoint", daemon=True
        )

    @property
    def port(self) -> int:
        """Port in use."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def stop(self) -> None:
        """Listen no more; running streams end with their engine."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], service: EngineService) -> None:
        super().__init__(address, _Handler)
        self.service = service


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = READ_SECONDS
    server: _Server

    def do_GET(self) -> None:
        service = self.server.service
        if self.path == "/health":
            self._send(200, {"status": "ok"})
        elif self.path == "/v1/models":
            model = {"id": service.built.name, "object": "model", "owned_by": "dspark"}
            self._send(200, {"object": "list", "data": [model]})
        elif self.path == "/stats":
            self._send(200, _stats(service))
        else:
            self._fail(404, f"{self.path}: no such path", "not_found_error")

    def do_POST(self) -> None:
        answers = {"/v1/completions": self._completion, "/v1/chat/completions": self._chat}
        answer = answers.get(self.path)
        if answer is None:
            self.close_connection = True  # the body stays unread
            self._fail(404, f"{self.path}: no such path", "not_found_error")
            return
        try:
            body = self._body()
            if body is not None:
                answer(body)
        except (BadRequestError, ValueError) as error:
            self._fail(400, str(error), "invalid_request_error")
        except OverloadedError as error:
            self._fail(429, str(error), "overloaded_error")
        except EngineFailedError as error:
            self._fail(500, str(error), "server_error")

    def _body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.close_connection = True
            self._fail(411, "Content-Length: expected one", "invalid_request_error")
            return None
        if int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            self._fail(
                413, f"body: got {length} bytes, expected at most {MAX_BODY_BYTES}", "invalid_request_error"
            )
            return None
        return self.rfile.read(int(length))

    def _completion(self, raw: bytes) -> None:
        body = decode_completion(raw)
        prompt = (
            body.prompt if isinstance(body.prompt, list) else self.server.service.texts.encode(body.prompt)
        )
        self._answer(body, prompt, _CompletionShape())

    def _chat(self, raw: bytes) -> None:
        body = decode_chat(raw)
        texts = self.server.service.texts
        if not texts.has_chat:
            raise BadRequestError("messages: this model has no chat template; use /v1/completions")
        prompt = texts.encode_chat([{"role": m.role, "content": m.text} for m in body.messages])
        self._answer(body, prompt, _ChatShape())

    def _answer(self, body: CompletionBody | ChatBody, prompt: list[int], shape: _Shape) -> None:
        service = self.server.service
        generation = service.generate(
            prompt,
            max_tokens=body.max_tokens,
            temperature=body.temperature,
            seed=body.seed,
            segment=body.segment,
        )
        head = {
            "id": f"{shape.prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": body.model or service.built.name,
        }
        if body.stream:
            self._stream(generation, body, prompt, shape, head)
            return
        stream, text, reason = TextStream(service.texts), "", "length"
        tokens: list[int] = []
        for new, ended in generation:
            tokens.extend(new)
            text += stream.push(new, last=ended is not None)
            reason = ended or reason
        choice = shape.whole(text) | {"index": 0, "finish_reason": reason, "logprobs": None}
        if body.return_token_ids:
            choice |= {"prompt_token_ids": prompt, "token_ids": tokens}
        self._send(200, head | {"object": shape.kind, "choices": [choice], "usage": _usage(prompt, tokens)})

    def _stream(
        self,
        generation: Generation,
        body: CompletionBody | ChatBody,
        prompt: list[int],
        shape: _Shape,
        head: dict[str, Any],
    ) -> None:
        """Server-sent events; a client that hangs up ends the request."""
        stream = TextStream(self.server.service.texts)
        tokens: list[int] = []
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Cache-Control", "no-cache")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            first = True
            for new, ended in generation:
                tokens.extend(new)
                piece = shape.piece(stream.push(new, last=ended is not None), first)
                choice = piece | {"index": 0, "finish_reason": ended, "logprobs": None}
                if body.return_token_ids:
                    choice |= {"token_ids": list(new)} | ({"prompt_token_ids": prompt} if first else {})
                event = head | {"object": shape.piece_kind, "choices": [choice]}
                if ended is not None:
                    event["usage"] = _usage(prompt, tokens)
                self._event(msgspec.json.encode(event))
                first = False
            self._event(b"[DONE]")
            self._chunk(b"")
        except EngineFailedError as error:
            # The head is sent already: the stream says so itself.
            with contextlib.suppress(OSError):
                self._event(msgspec.json.encode(error_body(str(error), "server_error", 500)))
                self._chunk(b"")
        except OSError:
            self.close_connection = True
            generation.cancel()

    def _event(self, data: bytes) -> None:
        self._chunk(b"data: " + data + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _send(self, status: int, body: Any) -> None:
        data = msgspec.json.encode(body)
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    def _fail(self, status: int, message: str, kind: str) -> None:
        self._send(status, error_body(message, kind, status))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        log.debug("http_request client=%s " + format, self.client_address[0], *args)


class _Shape:
    """How the two kinds of completion say the same thing."""

    prefix = kind = piece_kind = ""

    def whole(self, text: str) -> dict[str, Any]:
        """The whole answer."""
        return {"text": text}

    def piece(self, text: str, first: bool) -> dict[str, Any]:  # noqa: ARG002
        """A piece of a stream."""
        return {"text": text}


class _CompletionShape(_Shape):
    prefix, kind, piece_kind = "cmpl", "text_completion", "text_completion"


class _ChatShape(_Shape):
    prefix, kind, piece_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def whole(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}

    def piece(self, text: str, first: bool) -> dict[str, Any]:
        return {"delta": ({"role": "assistant"} if first else {}) | {"content": text}}


def _usage(prompt: list[int], tokens: list[int]) -> dict[str, int]:
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(tokens),
        "total_tokens": len(prompt) + len(tokens),
    }


def _stats(service: EngineService) -> dict[str, Any]:
    totals, engine = service.totals, service.engine
    adapter = engine.adapter
    return asdict(totals) | {
        "tokens_per_second": totals.tokens / totals.seconds if totals.seconds else 0.0,
        "running": engine.running,
        "waiting": engine.waiting,
        "version": engine.parameters.version,
        "fingerprint": "" if adapter is None else adapter.identity.fingerprint(),
    }
