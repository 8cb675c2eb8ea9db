"""DeepSpec checkpoints of every head type give what the paper's equations give, written out here."""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
save_file = pytest.importorskip("safetensors.torch").save_file

from serving_adapter.engines.torch.building import EngineOptions, build_drafter  # noqa: E402
from serving_adapter.engines.torch.dspark.checkpoint import load_drafter_model  # noqa: E402
from serving_adapter.engines.torch.dspark.config import CheckpointError, DSparkConfig  # noqa: E402
from serving_adapter.engines.torch.dspark.drafter import DSparkDrafter  # noqa: E402
from serving_adapter.engines.torch.engine import TorchEngine, generate  # noqa: E402
from serving_adapter.engines.torch.packing import PackedBatch  # noqa: E402
from serving_adapter.engines.torch.requests import GenerationRequest  # noqa: E402
from tests.test_torch_toy import greedy_output, packed  # noqa: E402

VOCABULARY, HIDDEN, RANK, GAMMA = 40, 24, 6, 5
HEADS, KV_HEADS, DIM, MIDDLE, LAYERS = 4, 2, 8, 30, 2
TARGET_LAYERS = [-1, 1, 3]
EPS, THETA = 1e-6, 1_000_000.0


def a_config(head: str, **changes) -> dict:
    return {
        "architectures": ["Qwen3DSparkModel"],
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": DIM,
        "intermediate_size": MIDDLE,
        "rms_norm_eps": EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        "attention_bias": False,
        "hidden_act": "silu",
        "layer_types": ["full_attention"] * LAYERS,
        "block_size": GAMMA,
        "target_layer_ids": TARGET_LAYERS,
        "mask_token_id": VOCABULARY - 1,
        "markov_rank": 0 if head == "none" else RANK,
        "markov_head_type": head,
        "enable_confidence_head": True,
        "confidence_head_with_markov": head != "none",
    } | changes


def random_weights(head: str, with_markov: bool) -> dict:
    random = torch.Generator().manual_seed(7)

    def matrix(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random) * 0.4

    weights = {
        "embed_tokens.weight": matrix(VOCABULARY, HIDDEN),
        "lm_head.weight": matrix(VOCABULARY, HIDDEN),
        "fc.weight": matrix(HIDDEN, HIDDEN * len(TARGET_LAYERS)),
        "hidden_norm.weight": 1 + matrix(HIDDEN),
        "norm.weight": 1 + matrix(HIDDEN),
        "confidence_head.proj.weight": matrix(1, HIDDEN + (RANK if with_markov else 0)),
        "confidence_head.proj.bias": matrix(1),
    }
    for i in range(LAYERS):
        at = f"layers.{i}"
        weights |= {
            f"{at}.self_attn.q_proj.weight": matrix(HEADS * DIM, HIDDEN),
            f"{at}.self_attn.k_proj.weight": matrix(KV_HEADS * DIM, HIDDEN),
            f"{at}.self_attn.v_proj.weight": matrix(KV_HEADS * DIM, HIDDEN),
            f"{at}.self_attn.o_proj.weight": matrix(HIDDEN, HEADS * DIM),
            f"{at}.self_attn.q_norm.weight": 1 + matrix(DIM),
            f"{at}.self_attn.k_norm.weight": 1 + matrix(DIM),
            f"{at}.mlp.gate_proj.weight": matrix(MIDDLE, HIDDEN),
            f"{at}.mlp.up_proj.weight": matrix(MIDDLE, HIDDEN),
            f"{at}.mlp.down_proj.weight": matrix(HIDDEN, MIDDLE),
            f"{at}.input_layernorm.weight": 1 + matrix(HIDDEN),
            f"{at}.post_attention_layernorm.weight": 1 + matrix(HIDDEN),
        }
    if head != "none":
        weights["markov_head.markov_w1.weight"] = matrix(VOCABULARY, RANK)
        weights["markov_head.markov_w2.weight"] = matrix(VOCABULARY, RANK)
    if head == "gated":
        weights["markov_head.gate_proj.weight"] = matrix(RANK, HIDDEN + RANK)
        weights["markov_head.gate_proj.bias"] = matrix(RANK)
    if head == "rnn":
        weights["markov_head.joint_proj.weight"] = matrix(3 * RANK, 2 * RANK + HIDDEN)
        weights["markov_head.joint_proj.bias"] = matrix(3 * RANK)
    return weights


def a_checkpoint(folder, head: str, **changes):
    config = a_config(head, **changes)
    with_markov = config["enable_confidence_head"] and config["confidence_head_with_markov"]
    weights = random_weights(head, with_markov)
    if not config["enable_confidence_head"]:
        weights = {name: w for name, w in weights.items() if not name.startswith("confidence")}
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, str(folder / "model.safetensors"))
    return folder, weights


def draft_with_engine(folder, tokens, features):
    """Through the engine's own path: prefill, then a committed stretch with a rejected tail."""
    own = torch.zeros(VOCABULARY, HIDDEN)
    model = load_drafter_model(folder, own, own)
    drafter = DSparkDrafter(model, rows=3, limit=300)
    device = torch.device("cpu")
    drafter.prefill(
        PackedBatch.build([tokens[:4], [9, 9]], [0, 0], device), torch.cat((features[:4], features[:2]))
    )
    garbage = torch.randn(2, features.shape[1])
    batch = PackedBatch.build([[*tokens[4:-1], 3, 3]], [4], device)
    drafter.commit(batch, torch.cat((features[4 : len(tokens) - 1], garbage)), [len(tokens) - 5])
    zero = torch.zeros(2, dtype=torch.float64)
    return drafter.propose([tokens, [9, 9, 9]], zero, torch.zeros(2, GAMMA, dtype=torch.float64))


# The reference: one vector at a time, as the equations stand.


def norm(x, weight):
    return weight * x / math.sqrt(float((x * x).mean()) + EPS)


def turn(x, position: int):
    half = DIM // 2
    out = np.empty(DIM)
    for i in range(half):
        angle = position / THETA ** (2 * i / DIM)
        out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
        out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
    return out


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def reference(w: dict, head: str, confidence: str, tokens: list[int], features: np.ndarray):
    w = {name: value.double().numpy() for name, value in w.items()}
    anchor = len(tokens) - 1
    context = [norm(w["fc.weight"] @ f, w["hidden_norm.weight"]) for f in features[:anchor]]
    block = [w["embed_tokens.weight"][t] for t in [tokens[-1]] + [VOCABULARY - 1] * (GAMMA - 1)]
    for i in range(LAYERS):
        p = {n.split(f"layers.{i}.")[1]: v for n, v in w.items() if n.startswith(f"layers.{i}.")}
        normed = [norm(x, p["input_layernorm.weight"]) for x in block]
        sources = [(c, position) for position, c in enumerate(context)]
        sources += [(x, anchor + slot) for slot, x in enumerate(normed)]
        attended = []
        for slot, x in enumerate(normed):
            out = []
            for h in range(HEADS):
                g = h // (HEADS // KV_HEADS)
                mine, theirs = slice(h * DIM, (h + 1) * DIM), slice(g * DIM, (g + 1) * DIM)
                q = turn(
                    norm(p["self_attn.q_proj.weight"][mine] @ x, p["self_attn.q_norm.weight"]), anchor + slot
                )
                scores, values = [], []
                for y, position in sources:
                    key = norm(p["self_attn.k_proj.weight"][theirs] @ y, p["self_attn.k_norm.weight"])
                    scores.append(q @ turn(key, position) / math.sqrt(DIM))
                    values.append(p["self_attn.v_proj.weight"][theirs] @ y)
                weight = np.exp(np.array(scores) - max(scores))
                out.append((weight / weight.sum()) @ np.array(values))
            attended.append(p["self_attn.o_proj.weight"] @ np.concatenate(out))
        block = [x + a for x, a in zip(block, attended, strict=True)]
        for slot, x in enumerate(block):
            y = norm(x, p["post_attention_layernorm.weight"])
            gate = p["mlp.gate_proj.weight"] @ y
            block[slot] = x + p["mlp.down_proj.weight"] @ (
                gate * sigmoid(gate) * (p["mlp.up_proj.weight"] @ y)
            )
    hidden = [norm(x, w["norm.weight"]) for x in block]
    previous, state = tokens[-1], np.zeros(RANK)
    all_logits, drafted, confidences = [], [], []
    for h in hidden:
        logits = w["lm_head.weight"] @ h
        e = None if head == "none" else w["markov_head.markov_w1.weight"][previous]
        if head == "vanilla":
            logits = logits + w["markov_head.markov_w2.weight"] @ e
        if head == "gated":
            gate = sigmoid(
                w["markov_head.gate_proj.weight"] @ np.concatenate((h, e)) + w["markov_head.gate_proj.bias"]
            )
            logits = logits + w["markov_head.markov_w2.weight"] @ (gate * e)
        if head == "rnn":
            joint = w["markov_head.joint_proj.weight"] @ np.concatenate((state, e, h))
            g, c, o = np.split(joint + w["markov_head.joint_proj.bias"], 3)
            state = sigmoid(g) * state + (1 - sigmoid(g)) * np.tanh(c)
            logits = logits + w["markov_head.markov_w2.weight"] @ np.tanh(o)
        seen = np.concatenate((h, e)) if confidence == "markov" else h
        if confidence != "absent":
            z = w["confidence_head.proj.weight"][0] @ seen + w["confidence_head.proj.bias"][0]
        else:
            odds = np.exp(logits - logits.max())
            z = math.log(odds.max() / (odds.sum() - odds.max()))
        all_logits.append(logits)
        confidences.append(z)
        previous = int(np.argmax(logits))
        drafted.append(previous)
    return np.array(all_logits), drafted, np.array(confidences)


CASES = [
    ("vanilla", "markov"),
    ("gated", "markov"),
    ("rnn", "markov"),
    ("none", "hidden"),
    ("vanilla", "hidden"),
    ("rnn", "absent"),
]


@pytest.mark.parametrize(("head", "confidence"), CASES)
def test_drafts_and_confidences_are_those_of_the_equations(tmp_path, head, confidence):
    folder, weights = a_checkpoint(
        tmp_path,
        head,
        enable_confidence_head=confidence != "absent",
        confidence_head_with_markov=confidence == "markov",
    )
    tokens = [5, 11, 2, 30, 17, 8, 8, 21, 4]
    features = torch.randn(
        len(tokens), HIDDEN * len(TARGET_LAYERS), generator=torch.Generator().manual_seed(3)
    )
    proposal = draft_with_engine(folder, tokens, features)
    logits, drafted, confidences = reference(weights, head, confidence, tokens, features.double().numpy())
    assert proposal.logits[0].numpy() == pytest.approx(logits, abs=1e-5)
    assert proposal.tokens[0].tolist() == drafted
    assert proposal.confidence[0].numpy() == pytest.approx(confidences, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"]}, "layer_types"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "rope_type"),
        ({"markov_head_type": "fir"}, "markov_head_type"),
        ({"target_layer_ids": [3, 1]}, "target_layer_ids"),
        ({"mask_token_id": None}, "mask_token_id"),
        ({"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_a_checkpoint_that_cannot_be_run_is_refused_by_name(change, names):
    with pytest.raises(CheckpointError, match=names):
        DSparkConfig.from_deepspec(a_config("vanilla", **change))


def test_missing_and_foreign_weights_are_refused(tmp_path):
    folder, weights = a_checkpoint(tmp_path, "vanilla")
    weights.pop("fc.weight")
    save_file(weights, str(folder / "model.safetensors"))
    own = torch.zeros(VOCABULARY, HIDDEN)
    with pytest.raises(CheckpointError, match=r"fc\.weight"):
        load_drafter_model(folder, own, own)


def test_a_checkpoint_for_a_target_of_another_width_is_refused(tmp_path):
    folder, weights = a_checkpoint(tmp_path, "vanilla")
    for name in ("embed_tokens.weight", "lm_head.weight"):
        weights.pop(name)
    save_file(weights, str(folder / "model.safetensors"))
    narrow = torch.zeros(VOCABULARY, HIDDEN - 8)
    with pytest.raises(CheckpointError, match="hidden_size"):
        load_drafter_model(folder, narrow, narrow)


def test_dspark_fields_may_stand_under_a_key_of_their_own():
    config = a_config("gated")
    nested = {k: config.pop(k) for k in ("block_size", "mask_token_id", "markov_rank", "markov_head_type")}
    read = DSparkConfig.from_deepspec(config | {"dflash_config": nested})
    assert (read.block_size, read.markov_head, read.markov_rank) == (GAMMA, "gated", RANK)


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    own = torch.zeros(VOCABULARY, HIDDEN)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_drafter_model(tmp_path, own, own)


@pytest.mark.parametrize("head", ["vanilla", "rnn"])
def test_a_checkpoint_drafts_for_a_qwen3_target(tmp_path, head):
    folder, _ = a_checkpoint(tmp_path, head)
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=MIDDLE,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    model = transformers.Qwen3ForCausalLM(config).eval()
    target = packed(copy.deepcopy(model), rows=4)
    drafter = build_drafter(EngineOptions(drafter=str(folder), max_requests=4), target)
    assert (drafter.name, drafter.gamma) == (folder.name, GAMMA)
    engine = TorchEngine(target, drafter, max_requests=4)
    requests = [
        GenerationRequest(request_id=f"{i}", prompt=(i, 7, 2 * i), max_tokens=9 + i) for i in range(6)
    ]
    assert generate(engine, requests) == [greedy_output(model, r.prompt, r.max_tokens) for r in requests]


def test_a_checkpoint_for_a_deeper_target_is_refused(tmp_path):
    folder, _ = a_checkpoint(tmp_path, "vanilla", hidden_size=HIDDEN)
    model = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=MIDDLE,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
        )
    )
    with pytest.raises(ValueError, match="target_layer_ids"):
        build_drafter(EngineOptions(drafter=str(folder), max_requests=4), packed(model, rows=4))
