"""A language model and a drafter small enough to enumerate, for the tests of the torch engine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from serving_adapter.engines.torch.packed_model import PackedModel  # noqa: E402
from serving_adapter.engines.torch.proposal import Proposal  # noqa: E402
from serving_adapter.engines.torch.sampling import draw_from_logits  # noqa: E402

VOCABULARY = 12

DEVICES = ["cpu", *([pytest.param("cuda", marks=pytest.mark.gpu)] if torch.cuda.is_available() else [])]
"""The tests that take a device run on CUDA too where there is one."""

# Tensors this small are not worth a second thread, and waiting for one costs more than the work.
torch.set_num_threads(1)


def tiny_llama(vocabulary: int = VOCABULARY, *, layers: int = 2, sharpness: float = 12.0, seed: int = 0):
    """A random Llama whose next-token distributions are neither flat nor certain."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.35)
            if name.startswith("lm_head"):
                parameter.mul_(sharpness / 12.0)
    return model


def packed(model, *, rows: int = 64, limit: int = 256) -> PackedModel:
    return PackedModel(model, rows=rows, limit=limit)


class TableDrafter:
    """Draws token k from a table indexed by token k - 1, over part of the vocabulary; so is its confidence.

    ``confidence`` has shape ``[gamma, vocabulary]``: the logit of position k by token k - 1.
    """

    feature_layers: tuple[int, ...] = ()

    def __init__(self, logits, confidence, vocabulary=None) -> None:
        self._logits = torch.as_tensor(np.asarray(logits), dtype=torch.float32)
        self._confidence = torch.as_tensor(np.asarray(confidence), dtype=torch.float32)
        self._vocabulary = None if vocabulary is None else torch.as_tensor(vocabulary)
        self.gamma = self._confidence.shape[0]
        self.name = "table"

    @classmethod
    def random(cls, gamma: int = 3, vocabulary: int = VOCABULARY, drafted: int = 9, seed: int = 1):
        random = np.random.default_rng(seed)
        return cls(
            random.normal(0, 1.5, (vocabulary, drafted)),
            random.normal(0.5, 2.0, (gamma, vocabulary)),
            random.permutation(vocabulary)[:drafted].copy(),
        )

    def prefill(self, batch, features) -> None:
        pass

    def commit(self, batch, features, kept: Sequence[int]) -> None:
        pass

    def move(self, source: int, destination: int) -> None:
        pass

    def propose(self, sequences, temperature, uniform) -> Proposal:
        previous = torch.tensor([tokens[-1] for tokens in sequences])
        tokens, probability, logits, confidence = [], [], [], []
        for k in range(self.gamma):
            logits.append(self._logits[previous])
            confidence.append(self._confidence[k, previous])
            drawn, p = draw_from_logits(logits[-1], temperature, uniform[:, k])
            previous = drawn if self._vocabulary is None else self._vocabulary[drawn]
            tokens.append(previous)
            probability.append(p)
        return Proposal(
            torch.stack(tokens, 1),
            torch.stack(probability, 1),
            torch.stack(logits, 1),
            torch.stack(confidence, 1),
            self._vocabulary,
        )


def enumerate_outputs(model, prompt: Sequence[int], length: int, temperature: float) -> np.ndarray:
    """Probability of every output of that length, shape ``[vocabulary] * length``, from the model itself."""
    vocabulary = model.config.vocab_size
    total = np.ones((1,))
    for done in range(length):
        prefixes = list(itertools.product(range(vocabulary), repeat=done))
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *prefix] for prefix in prefixes])).logits[:, -1]
        conditional = torch.softmax(logits.double() / temperature, dim=-1).numpy()
        total = (total[:, None] * conditional).reshape(-1)
    return total.reshape((vocabulary,) * length)


def greedy_output(model, prompt: Sequence[int], length: int, stop: frozenset[int] = frozenset()) -> list[int]:
    """The model's own greedy output, one whole forward pass over everything per token: no cache at all."""
    tokens = list(prompt)
    for _ in range(length):
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        if tokens[-1] in stop:
            break
    return tokens[len(prompt) :]


def test_the_toy_distribution_is_one():
    assert enumerate_outputs(tiny_llama(), [3, 4], 3, 1.0).sum() == pytest.approx(1.0)


def test_the_toy_is_neither_flat_nor_certain():
    first = enumerate_outputs(tiny_llama(), [3, 4], 1, 1.0)
    assert 0.2 < first.max() < 0.9
