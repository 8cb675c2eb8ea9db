"""A small OpenAI-compatible HTTP endpoint over one engine, on the standard library alone.

``POST /v1/completions``, ``POST /v1/chat/completions`` (both also streaming), ``GET /v1/models``,
``GET /health``, ``GET /stats``. For driving the engine, not for the open internet: it listens where it is
told to and knows no users.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

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
    Piece,
    ShuttingDownError,
)
from serving_adapter.engines.torch.shapes import ChatShape, CompletionShape, Shape, usage
from serving_adapter.engines.torch.text import TextStream

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 4 * 1024 * 1024
READ_SECONDS = 30.0
"""A client that sends nothing for so long is hung up on."""


LOOK_SECONDS = 0.2
"""While nothing comes from the engine, a client is looked at this often: it may have hung up."""
GRACE_SECONDS = 10.0
FAREWELL_SECONDS = 5.0
"""For the last words to clients whose requests were ended."""


class PortError(OSError):
    """The address cannot be listened on; the message names it."""


class Endpoint:
    """Serves an engine over HTTP. The port is taken when this is made, and answers from :meth:`start` on.

    Parameters
    ----------
    service
        A started engine service; None when :meth:`start` brings it.
    host, port
        Where to listen; port 0 takes a free one, see :attr:`port`.

    Raises
    ------
    PortError
        Naming host and port.
    """

    def __init__(
        self, service: EngineService | None = None, host: str = "127.0.0.1", port: int = 8000
    ) -> None:
        self._address = f"{host}:{port}"
        try:
            self._server = _Server((host, port), service)
        except (OSError, OverflowError) as error:
            raise self._refused(error) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="dspark-endpoint", daemon=True
        )

    def _refused(self, error: Exception) -> PortError:
        reason = getattr(error, "strerror", None) or str(error)
        return PortError(f"{self._address}: cannot be listened on ({reason})")

    @property
    def port(self) -> int:
        """Port in use."""
        return int(self._server.server_address[1])

    def start(self, service: EngineService | None = None) -> None:
        """Begin to listen.

        Raises
        ------
        PortError
            Somebody else listens there since.
        """
        if service is not None:
            self._server.service = service
        try:
            self._server.server_activate()
        except OSError as error:
            raise self._refused(error) from error
        self._thread.start()

    def shut_down(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """End engine and endpoint: new requests are refused, those under way may finish within the grace.

        What is unfinished then is told so: a stream ends with the reason ``abort``, others with 503.
        """
        service = self._server.service
        service.refuse_new()
        self._server.wait_for_answers(grace_seconds)
        service.stop()
        self._server.wait_for_answers(FAREWELL_SECONDS)
        self.stop()

    def stop(self) -> None:
        """Listen no more; running streams end with their engine."""
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    service: EngineService

    def __init__(self, address: tuple[str, int], service: EngineService | None) -> None:
        super().__init__(address, _Handler, bind_and_activate=False)
        if service is not None:
            self.service = service
        self._answering = 0
        self._answered = threading.Condition()
        try:
            self.server_bind()
        except BaseException:
            self.server_close()
            raise

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Count a request that is being answered."""
        with self._answered:
            self._answering += 1
        try:
            yield
        finally:
            with self._answered:
                self._answering -= 1
                self._answered.notify_all()

    def wait_for_answers(self, seconds: float) -> bool:
        """Wait until no request is being answered; False when time ran out first."""
        with self._answered:
            return self._answered.wait_for(lambda: self._answering == 0, seconds)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = READ_SECONDS
    server: _Server

    def do_GET(self) -> None:
        service = self.server.service
        path = urlsplit(self.path).path
        if path == "/health":
            status = (
                "shutting down" if service.refusing else "ok" if service.alive else "the engine has ended"
            )
            self._send(200 if status == "ok" else 503, {"status": status})
        elif path == "/v1/models":
            model = {"id": service.built.name, "object": "model", "owned_by": "dspark"}
            self._send(200, {"object": "list", "data": [model]})
        elif path == "/stats":
            self._send(200, service.stats())
        else:
            self._fail(404, f"{self.path}: no such path", "not_found_error")

    def _health(self, service: EngineService) -> None:
        if service.refusing:
            self._send(503, {"status": "shutting down"})
        elif not service.alive:
            self._send(503, {"status": "the engine has ended"})
        else:
            self._send(200, {"status": "ok"})

    def do_POST(self) -> None:
        answers = {"/v1/completions": self._completion, "/v1/chat/completions": self._chat}
        answer = answers.get(urlsplit(self.path).path)
        if answer is None:
            self.close_connection = True  # the body stays unread
            self._fail(404, f"{self.path}: no such path", "not_found_error")
            return
        try:
            body = self._body()
            if body is not None:
                with self.server.answering():
                    self._served(answer, body)
        except OSError:  # hung up while sending
            self.close_connection = True

    def _served(self, answer: Callable[[bytes], None], body: bytes) -> None:
        try:
            answer(body)
        except BadRequestError as error:
            self._fail(400, str(error), "invalid_request_error", error.param)
        except ValueError as error:
            self._fail(400, str(error), "invalid_request_error")
        except ShuttingDownError as error:
            self.close_connection = True
            self._fail(503, str(error), "service_unavailable_error")
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
        self._answer(body, prompt, CompletionShape())

    def _chat(self, raw: bytes) -> None:
        body = decode_chat(raw)
        texts = self.server.service.texts
        if not texts.has_chat:
            raise BadRequestError("messages: this model has no chat template; use /v1/completions")
        prompt = texts.encode_chat([{"role": m.template_role, "content": m.text} for m in body.messages])
        self._answer(body, prompt, ChatShape())

    def _answer(self, body: CompletionBody | ChatBody, prompt: list[int], shape: Shape) -> None:
        service = self.server.service
        if body.model not in ("", service.built.name):
            message = f"model: got {body.model!r}, which is not served here; expected {service.built.name!r}"
            self._send(404, error_body(message, "invalid_request_error", "model_not_found", "model"))
            return
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
            "model": service.built.name,
        }
        try:
            if body.stream:
                self._stream(generation, body, prompt, shape, head)
            else:
                self._whole(generation, body, prompt, shape, head)
        except OSError:  # the client has hung up
            self.close_connection = True
            generation.cancel()

    def _whole(
        self,
        generation: Generation,
        body: CompletionBody | ChatBody,
        prompt: list[int],
        shape: Shape,
        head: dict[str, Any],
    ) -> None:
        """One answer when all of it is there."""
        stream, text, reason = TextStream(self.server.service.texts), "", "length"
        tokens: list[int] = []
        for new, ended in self._pieces(generation):
            tokens.extend(new)
            text += stream.push(new, last=ended is not None)
            reason = ended or reason
        choice = shape.whole(text) | {"index": 0, "finish_reason": reason, "logprobs": None}
        if body.return_token_ids:
            choice |= {"prompt_token_ids": prompt, "token_ids": tokens}
        self._send(200, head | {"object": shape.kind, "choices": [choice], "usage": usage(prompt, tokens)})

    def _pieces(self, generation: Generation) -> Iterator[Piece]:
        """What comes of a generation, for as long as the client is there to hear it.

        Raises
        ------
        ConnectionError
            It has hung up.
        """
        for piece in generation.each(LOOK_SECONDS):
            if _hung_up(self.connection):
                raise ConnectionResetError("the client has hung up")
            if piece is not None:
                yield piece

    def _stream(
        self,
        generation: Generation,
        body: CompletionBody | ChatBody,
        prompt: list[int],
        shape: Shape,
        head: dict[str, Any],
    ) -> None:
        """Server-sent events."""
        stream = TextStream(self.server.service.texts)
        tokens: list[int] = []
        head |= {"object": shape.piece_kind}
        counted: dict[str, Any] = {"usage": None} if body.include_usage else {}
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        first = True

        def say(new: Sequence[int], ended: str | None) -> None:
            nonlocal first
            tokens.extend(new)
            piece = shape.piece(stream.push(new, last=ended is not None), first)
            choice = piece | {"index": 0, "finish_reason": ended, "logprobs": None}
            if body.return_token_ids:
                choice |= {"token_ids": list(new)} | ({"prompt_token_ids": prompt} if first else {})
            self._event(head | {"choices": [choice]} | counted)
            first = False

        try:
            for new, ended in self._pieces(generation):
                say(new, ended)
        # The head is sent already: the stream says itself how it ends.
        except ShuttingDownError:
            say((), "abort")
        except EngineFailedError as error:
            self._event(error_body(str(error), "server_error", 500))
        if body.include_usage:
            self._event(head | {"choices": [], "usage": usage(prompt, tokens)})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: " + msgspec.json.encode(event) + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _send(self, status: int, body: Any) -> None:
        data = msgspec.json.encode(body)
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if self.close_connection:  # a client that keeps connections must not use this one again
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(data)

    def _fail(self, status: int, message: str, kind: str, param: str | None = None) -> None:
        self._send(status, error_body(message, kind, status, param))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        log.debug("http_request client=%s " + format, self.client_address[0], *args)


def _hung_up(connection: socket.socket) -> bool:
    """Whether the other side has closed: the socket is readable and holds nothing."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    if not poll.poll(0):
        return False
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True
