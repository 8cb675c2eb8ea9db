"""The OpenAI-compatible endpoint on a small random model: any client can drive the engine."""

from __future__ import annotations

import http.client
import json
import threading

import httpx
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from serving_adapter.engines.torch.building import BuiltEngine  # noqa: E402
from serving_adapter.engines.torch.endpoint import MAX_BODY_BYTES, Endpoint  # noqa: E402
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


@pytest.fixture(scope="module")
def service(model):
    target = packed(tiny_llama(VOCABULARY, seed=6), rows=4)
    drafter = SelfDrafter(rounded_copy(target, rows=4, limit=256), None, gamma=4)
    engine = TorchEngine(target, drafter, Threshold(0.3), max_requests=4)
    service = EngineService(BuiltEngine(engine, LetterTokenizer(), "toy", frozenset({STOP})), max_waiting=20)
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


def test_a_client_that_hangs_up_ends_its_request(client, service):
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
