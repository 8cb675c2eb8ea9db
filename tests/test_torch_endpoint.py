"""The OpenAI-compatible endpoint on a small random model: any client can drive the engine."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading

import httpx
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from serving_adapter.engines.torch.building import BuiltEngine  # noqa: E402
from serving_adapter.engines.torch.endpoint import MAX_BODY_BYTES, Endpoint, PortError  # noqa: E402
from serving_adapter.engines.torch.engine import TorchEngine  # noqa: E402
from serving_adapter.engines.torch.self_draft import SelfDrafter, rounded_copy  # noqa: E402
from serving_adapter.engines.torch.service import EngineService  # noqa: E402
from serving_adapter.engines.torch.text import Texts, TextStream  # noqa: E402
from serving_adapter.scheduler import Threshold  # noqa: E402
from tests.rings import wait_until  # noqa: E402
from tests.test_torch_toy import greedy_output, packed, tiny_llama  # noqa: E402

VOCABULARY = 60
STOP = 1


class LetterTokenizer:
    """Token n is the n-th byte of an alphabet in which some letters take two tokens."""

    chat_template = "yes"
    alphabet = "abcdefghijklmnopqrstuvwxyz0123456789 .éßñ".encode()

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [self.alphabet.index(byte) for byte in text.encode()]}

    def decode(self, tokens, skip_special_tokens=False):
        kept = [t % len(self.alphabet) for t in tokens if t != STOP]
        return bytes(self.alphabet[t] for t in kept).decode(errors="replace")

    def apply_chat_template(self, messages, add_generation_prompt, tokenize):
        return "".join(f"{m['role']} {m['content']} ".replace(":", " ") for m in messages)


@pytest.fixture(scope="module")
def model():
    return tiny_llama(VOCABULARY, seed=6)


def a_service() -> EngineService:
    target = packed(tiny_llama(VOCABULARY, seed=6), rows=4)
    drafter = SelfDrafter(rounded_copy(target, rows=4, limit=256), None, gamma=4)
    engine = TorchEngine(target, drafter, Threshold(0.3), max_requests=4)
    return EngineService(BuiltEngine(engine, LetterTokenizer(), "toy", frozenset({STOP})), max_waiting=20)


@pytest.fixture(scope="module")
def service():
    service = a_service()
    service.start()
    yield service
    service.stop()


@pytest.fixture(scope="module")
def client(service):
    endpoint = Endpoint(service, port=0)
    endpoint.start()
    with httpx.Client(base_url=f"http://127.0.0.1:{endpoint.port}", timeout=60) as client:
        yield client
    endpoint.stop()


def complete(client, path="/v1/completions", **body):
    return client.post(path, json={"prompt": "hello", "max_tokens": 12, "temperature": 0} | body)


def events(response) -> list:
    lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_greedy_completion_is_the_models_own(client, model):
    prompt = LetterTokenizer()("hello")["input_ids"]
    answer = complete(client, return_token_ids=True).json()
    choice = answer["choices"][0]
    assert choice["token_ids"] == greedy_output(model, prompt, 12, frozenset({STOP}))
    assert choice["prompt_token_ids"] == prompt
    assert choice["text"] == LetterTokenizer().decode(choice["token_ids"])
    assert answer["object"] == "text_completion"
    assert answer["usage"]["total_tokens"] == 5 + len(choice["token_ids"])


def test_a_prompt_of_tokens_is_the_same_prompt(client):
    tokens = LetterTokenizer()("hello")["input_ids"]
    assert complete(client, prompt=tokens).json()["choices"] == complete(client).json()["choices"]


def test_token_ids_come_only_when_asked_for(client):
    assert "token_ids" not in complete(client).json()["choices"][0]


def test_without_a_limit_a_completion_is_short(client):
    body = {"prompt": "x", "temperature": 1.0, "seed": 2, "return_token_ids": True}
    choice = client.post("/v1/completions", json=body).json()["choices"][0]
    assert len(choice["token_ids"]) == 16 or choice["finish_reason"] == "stop"


def test_a_seed_fixes_a_sampled_completion(client):
    one, again, other = (
        complete(client, temperature=1.0, seed=seed).json()["choices"][0]["text"] for seed in (5, 5, 6)
    )
    assert one == again != other


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_is_the_whole_answer_in_pieces(client, path):
    body = {"max_tokens": 30, "temperature": 0.9, "seed": 3, "return_token_ids": True}
    body |= {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}
    whole = client.post(path, json=body).json()["choices"][0]
    with client.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.headers["content-type"] == "text/event-stream"
        pieces = [event["choices"][0] for event in events(response)]
    if "chat" in path:
        assert pieces[0]["delta"]["role"] == "assistant"
        assert "".join(p["delta"]["content"] for p in pieces) == whole["message"]["content"]
    else:
        assert "".join(p["text"] for p in pieces) == whole["text"]
    assert [t for p in pieces for t in p["token_ids"]] == whole["token_ids"]
    assert [p["finish_reason"] for p in pieces] == [None] * (len(pieces) - 1) + [whole["finish_reason"]]


def test_chat_parts_and_the_newer_limit_are_understood(client):
    body = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "max_completion_tokens": 3,
        "temperature": 0,
    }
    answer = client.post("/v1/chat/completions", json=body).json()
    assert answer["usage"]["completion_tokens"] == 3
    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_many_clients_at_once_get_what_each_would_alone(client):
    alone = [complete(client, temperature=1.0, seed=i).json()["choices"] for i in range(10)]
    together: dict[int, object] = {}

    def ask(i: int) -> None:
        together[i] = complete(client, temperature=1.0, seed=i).json()["choices"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[i] for i in range(10)] == alone


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"top_p": 0.9}, "top_p"),
        ({"n": 2}, "n:"),
        ({"stop": "x"}, "stop"),
        ({"logprobs": 3}, "logprobs"),
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10_000}, "max_tokens"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [VOCABULARY]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"seed": -1}, "seed"),
        ({"segment": ""}, "segment"),
        ({"repetition_penalty": 1.2}, "repetition_penalty"),
        ({"min_p": 0.1}, "min_p"),
        ({"ignore_eos": True}, "ignore_eos"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"stop_token_ids": [3]}, "stop_token_ids"),
        ({"suffix": "x"}, "suffix"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"functions": []}, "functions"),
        ({"guided_json": {}}, "guided_json"),
        ({"foo": 1}, "foo"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"bar": True}}, "bar"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(client, change, names):
    answer = complete(client, **change)
    assert answer.status_code == 400
    assert names in answer.json()["error"]["message"]


def test_bodies_that_are_no_json_and_paths_that_are_not_there(client):
    assert client.post("/v1/completions", content=b"{").status_code == 400
    assert client.post("/v1/nothing", json={}).status_code == 404
    assert client.get("/nothing").status_code == 404
    assert client.post("/v1/chat/completions", json={"messages": []}).status_code == 400
    assert complete(client).status_code == 200


def test_a_body_too_large_is_refused_unread(client):
    connection = http.client.HTTPConnection(client.base_url.host, client.base_url.port, timeout=30)
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("Content-Length", str(MAX_BODY_BYTES + 1))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()


def test_health_models_and_stats(client):
    complete(client)
    assert client.get("/health").json() == {"status": "ok"}
    assert [m["id"] for m in client.get("/v1/models").json()["data"]] == ["toy"]
    stats = client.get("/stats").json()
    assert stats["tokens"] > 0
    assert stats["rounds"] >= stats["steps"] > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_ends_its_request(client, service, monkeypatch, stream):
    step, cancelled, may_step = service.engine.step, [], threading.Event()
    monkeypatch.setattr(service.engine, "step", lambda: may_step.wait(30) and step())
    monkeypatch.setattr(service.engine, "cancel", cancelled.append)
    connection = http.client.HTTPConnection(client.base_url.host, client.base_url.port, timeout=30)
    body = {"prompt": "hello", "max_tokens": 200, "stream": stream}
    connection.request("POST", "/v1/completions", json.dumps(body))
    wait_until(lambda: service.engine.waiting)
    connection.close()
    wait_until(lambda: cancelled)  # though nothing was there to be sent to it
    may_step.set()
    wait_until(lambda: service.engine.idle)


def test_a_client_that_hangs_up_between_two_pieces_ends_its_request(client, service):
    body = {"prompt": "hello", "max_tokens": 200, "temperature": 1.0, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
    wait_until(lambda: service.engine.idle)


def test_a_step_that_fails_ends_its_requests_and_no_others(client, service, monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(service.engine.target, "forward", broken)
        answer = complete(client)
    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert complete(client).status_code == 200


def test_half_a_character_waits_for_the_other_half():
    stream = TextStream(Texts(LetterTokenizer()))
    first, second = LetterTokenizer()("é")["input_ids"]
    assert stream.push([0]) == "a"
    assert stream.push([first]) == ""
    assert stream.push([second, 2]) == "éc"
    assert stream.push([first], last=True) == "�"


def test_null_asks_for_the_default_and_names_of_users_change_nothing(client):
    nulls = dict.fromkeys(("temperature", "top_p", "seed", "min_p", "foo", "stream", "stream_options"))
    assert complete(client, **nulls).status_code == 200
    plain = complete(client).json()["choices"]
    assert complete(client, user="me", metadata={"a": "b"}, model="toy").json()["choices"] == plain


def test_a_model_that_is_not_served_is_not_found(client):
    answer = complete(client, model="gpt-5")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "'toy'" in error["message"]


@pytest.mark.parametrize(
    ("message", "names"),
    [
        ({"role": "tool", "content": "x"}, "role"),
        ({"role": "pirate", "content": "x"}, "role"),
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "image_url"),
        ({"role": "assistant", "content": None, "tool_calls": [{}]}, "messages[1].tool_calls"),
    ],
)
def test_messages_that_no_template_can_write_are_refused(client, message, names):
    body = {"messages": [{"role": "user", "content": "hi"}, message], "max_tokens": 2}
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert names in answer.json()["error"]["message"]


def test_an_assistant_may_have_said_nothing(client):
    said = {"role": "assistant", "content": None, "tool_calls": None}
    body = {"messages": [{"role": "user", "content": "hi"}, said], "max_tokens": 2}
    assert client.post("/v1/chat/completions", json=body).status_code == 200


@pytest.mark.parametrize("wanted", [True, False])
def test_tokens_of_a_stream_are_counted_in_a_chunk_of_their_own_when_asked_for(client, wanted):
    body = {"prompt": "hi", "max_tokens": 5, "temperature": 0, "stream": True}
    options = {"stream_options": {"include_usage": True}} if wanted else {}
    with client.stream("POST", "/v1/completions", json=body | options) as response:
        pieces = events(response)
    if wanted:
        assert pieces[-1]["choices"] == []
        assert pieces[-1]["usage"]["prompt_tokens"] == 2
        assert all(piece["usage"] is None for piece in pieces[:-1])
    else:
        assert all("usage" not in piece and piece["choices"] for piece in pieces)


def test_an_endpoint_that_is_told_to_end_lets_requests_finish_and_takes_no_new_ones():
    with ending() as (service, endpoint, client, may_step):
        answers: list[httpx.Response] = []
        asking = threading.Thread(target=lambda: answers.append(complete(client)))
        asking.start()
        wait_until(lambda: service.engine.waiting)
        end = threading.Thread(target=endpoint.shut_down, args=(60.0,))
        end.start()
        wait_until(lambda: service.refusing)
        refused = complete(client)
        assert refused.status_code == 503
        assert "shutting down" in refused.json()["error"]["message"]
        assert client.get("/health").status_code == 503
        may_step.set()
        asking.join()
        end.join()
        assert answers[0].status_code == 200
        assert not service.alive


def test_what_is_unfinished_after_the_grace_is_told_so():
    with ending() as (service, endpoint, client, may_step):
        answers: list[httpx.Response] = []
        pieces: list[dict] = []

        def follow() -> None:
            body = {"prompt": "hi", "max_tokens": 9, "stream": True}
            with client.stream("POST", "/v1/completions", json=body) as response:
                pieces.extend(events(response))

        asking = [threading.Thread(target=lambda: answers.append(complete(client)))]
        asking.append(threading.Thread(target=follow))
        for thread in asking:
            thread.start()
        wait_until(lambda: service.engine.waiting == 2)
        end = threading.Thread(target=endpoint.shut_down, args=(0.0,))
        end.start()
        wait_until(lambda: service._stopping.is_set())
        may_step.set()
        for thread in (*asking, end):
            thread.join()
        assert answers[0].status_code == 503
        assert "shutting down" in answers[0].json()["error"]["message"]
        assert pieces[-1]["choices"][0]["finish_reason"] == "abort"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_health_tells_of_an_engine_that_has_ended_and_heeds_no_query():
    with ending() as (service, _, client, _):
        assert client.get("/health?x=1").json() == {"status": "ok"}

        def end() -> None:
            raise SystemExit

        service.engine.step = end
        assert complete(client).status_code == 500
        wait_until(lambda: not service.alive)
        answer = client.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (503, "the engine has ended")
        assert complete(client).status_code == 500


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortError, match=f"127.0.0.1:{port}"):
            Endpoint(None, port=port)


@contextlib.contextmanager
def ending():
    """A service of its own whose engine steps only when it may."""
    service, may_step = a_service(), threading.Event()
    step = service.engine.step
    service.engine.step = lambda: step() if may_step.wait(0.05) else None
    endpoint = Endpoint(service, port=0)
    service.start()
    endpoint.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{endpoint.port}", timeout=60) as client:
            yield service, endpoint, client, may_step
    finally:
        may_step.set()
        endpoint.stop()
        service.stop()
