"""``dspark-calibrator engine``: a model from a folder served over HTTP until it is told to stop."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import typer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from calibrator.cli import output  # noqa: E402
from calibrator.cli.engine import engine  # noqa: E402
from serving_adapter.ring_presence import present_ring, rings_of  # noqa: E402
from tests.rings import a_ring, a_ring_name, wait_until  # noqa: E402
from tests.test_torch_toy import greedy_output, tiny_llama  # noqa: E402

WORDS = [f"w{i}" for i in range(30)]
CODE = """
import typer
from calibrator.cli.engine import engine
app = typer.Typer()
app.command()(engine)
app()
"""


def run(*arguments: str) -> object:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(engine)
    return app(list(arguments), standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--scheduler", "clever"), "--scheduler"),
        (("--precision", "int4"), "precision"),
        (("--model", "/nowhere/at/all"), "/nowhere/at/all"),
        (("--model", "no-such/model"), "no-such/model.*hub"),
        (("--drafter", "/nowhere/at/all"), "drafter /nowhere/at/all"),
        (("--drafter", str(Path(__file__).parent)), "no config.json"),
        (("--scheduler", "fixed:8"), "fixed:8, expected at most fixed:7"),
        (("--scheduler", "fixed:9", "--drafter", "dspark"), "fixed:9, expected at most fixed:7"),
        pytest.param(
            ("--device", "cuda"),
            "device",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
    ],
)
def test_wrong_options_are_one_line_that_names_them(arguments, message, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # no hub answers there
    with pytest.raises(output.UsageError, match=message), a_ring_name() as ring:
        run(*arguments, "--port", "0", "--ring", ring)


def test_a_port_that_is_taken_is_told_before_anything_is_loaded():
    with a_ring_name() as ring, socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(output.UsageError, match=f"127.0.0.1:{port}"):
            run("--port", port, "--ring", ring)


def test_the_ring_of_a_running_engine_is_left_to_it():
    with a_ring_name() as name:
        ring = a_ring(name)
        with pytest.raises(output.UsageError, match=f"process {os.getpid()}"):
            run("--ring", name, "--port", "0")
        assert present_ring(name).text.boot == ring.boot
        ring.close()


def test_a_start_that_fails_leaves_the_last_ring_where_it_was(folder, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("serving_adapter.engines.torch.building.measure_profile", fail)
    with a_ring_name() as name:
        ring = a_ring(name)
        ring.close()
        with pytest.raises(output.UsageError, match="out of memory"):
            run("--model", str(folder), "--ring", name, "--port", "0", "--max-context", "64")
        assert present_ring(name).text.boot == ring.boot
        assert len(rings_of(name)) == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A small model with a tokenizer of words, as transformers saves one."""
    folder = tmp_path_factory.mktemp("model")
    tiny_llama(len(WORDS), seed=9).save_pretrained(str(folder))
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w1")
    wrapped.save_pretrained(str(folder))
    return folder


@pytest.mark.parametrize("drafter", ["self", "none"])
def test_a_model_from_a_folder_is_served_until_sigterm(folder, drafter):
    with a_ring_name() as ring:
        arguments = (
            "--model",
            str(folder),
            "--drafter",
            drafter,
            "--port",
            "0",
            "--ring",
            ring,
            "--threads",
            "1",
        )
        with subprocess.Popen(
            [sys.executable, "-c", CODE, *arguments, "--threads", "1", "--max-context", "128"],
            cwd=Path(__file__).parent.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
        ) as process:
            try:
                assert process.stdout is not None
                assert process.stderr is not None
                line = process.stdout.readline()
                found = re.search(r"http://[\d.]+:\d+/v1", line)
                assert found, line
                body = {"prompt": "w3 w4 w5", "max_tokens": 10, "temperature": 0, "return_token_ids": True}
                choice = httpx.post(f"{found[0]}/completions", json=body, timeout=60).json()["choices"][0]
                process.send_signal(signal.SIGTERM)
                wait_until(lambda: process.poll() is not None)
                assert process.returncode == 0
                told = process.stderr.read()
                assert f"loading {folder}" in told
                assert ("profiling 1 of " in told) == (drafter == "self")
                assert "listening on 127.0.0.1:" in told
            finally:
                process.kill()
    model = tiny_llama(len(WORDS), seed=9)
    assert choice["token_ids"] == greedy_output(model, (3, 4, 5), 10, frozenset({1}))
    assert choice["text"].split() == [WORDS[t] for t in choice["token_ids"] if t != 1]
