"""A drafter that ran along with its requests proposes what one would that reads each text for the first time.

Output is the target's whatever is drafted, so a drafter whose cache went wrong would only be slow and badly
calibrated. Here every proposal is held against one made from scratch, request by request.
"""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from serving_adapter.engines.torch.dspark.config import DSparkConfig  # noqa: E402
from serving_adapter.engines.torch.dspark.drafter import DSparkDrafter  # noqa: E402
from serving_adapter.engines.torch.dspark.model import DSparkModel  # noqa: E402
from serving_adapter.engines.torch.engine import TorchEngine, generate  # noqa: E402
from serving_adapter.engines.torch.packing import PackedBatch  # noqa: E402
from serving_adapter.engines.torch.requests import GenerationRequest  # noqa: E402
from serving_adapter.engines.torch.self_draft import SelfDrafter, SelfDraftHead, rounded_copy  # noqa: E402
from serving_adapter.scheduler import scheduler_from_name  # noqa: E402
from tests.test_torch_toy import packed, tiny_llama  # noqa: E402

VOCABULARY, ROWS, LIMIT = 40, 4, 128
WINDOW = 7


class Compared:
    """A drafter beside one that starts from scratch at every proposal."""

    def __init__(self, drafter, from_scratch) -> None:
        self.drafter, self._from_scratch = drafter, from_scratch
        self.name, self.gamma, self.feature_layers = drafter.name, drafter.gamma, drafter.feature_layers
        self.prefill, self.commit, self.move = drafter.prefill, drafter.commit, drafter.move
        self.compared, self.lengths = 0, set()

    def propose(self, sequences, temperature, uniform):
        proposal = self.drafter.propose(sequences, temperature, uniform)
        for row, tokens in enumerate(sequences):
            alone = self._from_scratch(list(tokens), temperature[row : row + 1], uniform[row : row + 1])
            assert proposal.tokens[row].tolist() == alone.tokens[0].tolist()
            assert proposal.confidence[row].numpy() == pytest.approx(alone.confidence[0].numpy(), abs=1e-4)
            assert proposal.probability[row].numpy() == pytest.approx(alone.probability[0].numpy(), abs=1e-5)
            self.compared += 1
            self.lengths.add(len(tokens))
        return proposal


def a_dspark_model(target, head: str) -> DSparkModel:
    torch.manual_seed(3)
    config = DSparkConfig(
        block_size=4,
        target_layer_ids=(0, 1),
        hidden_size=target.hidden_size,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=8,
        intermediate_size=24,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        context_window=WINDOW if head == "vanilla" else None,
        mask_token=None,
        markov_head=head,
        markov_rank=0 if head == "none" else 6,
        confidence_with_markov=head != "none",
    )
    drafted = torch.arange(0, VOCABULARY, 2)
    model = DSparkModel(config, target.embedding, target.lm_head[drafted].clone(), drafted)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3)
    return model.requires_grad_(False)


def compared_dspark(target, model_of, head) -> Compared:
    network = a_dspark_model(target, head)
    alone = packed(copy.deepcopy(model_of), rows=1, limit=LIMIT)

    def from_scratch(tokens, temperature, uniform):
        drafter = DSparkDrafter(network, rows=1, limit=LIMIT)
        if len(tokens) > 1:
            batch = PackedBatch.build([tokens[:-1]], [0], target.device)
            features = alone.forward(batch, feature_layers=network.config.target_layer_ids).features
            drafter.prefill(batch, features)
        return drafter.propose([tokens], temperature, uniform)

    return Compared(DSparkDrafter(network, rows=ROWS, limit=LIMIT), from_scratch)


def compared_self(target) -> Compared:
    random = torch.Generator().manual_seed(0)
    head = SelfDraftHead(
        weight=torch.randn(target.hidden_size + 5, generator=random),
        bias=0.3,
        projection=torch.randn(target.hidden_size, 5, generator=random),
    )

    def from_scratch(tokens, temperature, uniform):
        drafter = SelfDrafter(rounded_copy(target, rows=1, limit=LIMIT), head, gamma=4)
        return drafter.propose([tokens], temperature, uniform)

    return Compared(SelfDrafter(rounded_copy(target, rows=ROWS, limit=LIMIT), head, gamma=4), from_scratch)


@pytest.mark.parametrize("kind", ["self", "vanilla", "gated", "rnn", "none"])
def test_running_along_is_as_good_as_reading_anew(kind):
    model = tiny_llama(VOCABULARY, layers=3, seed=5)
    target = packed(copy.deepcopy(model), rows=ROWS, limit=LIMIT)
    drafter = compared_self(target) if kind == "self" else compared_dspark(target, model, kind)
    engine = TorchEngine(target, drafter, scheduler_from_name("fixed:3"), max_requests=ROWS)
    prompts = [(1,), (5, 6, 7), (9, 8), tuple(range(20, 32)), (4, 4, 4, 4), (30, 2), (11,)]
    requests = [
        GenerationRequest(
            request_id=f"{i}", prompt=prompt, max_tokens=3 + 5 * (i % 3), temperature=0.8 * (i % 2), seed=i
        )
        for i, prompt in enumerate(prompts)
    ]
    generate(engine, requests)
    assert drafter.compared > 15
    assert min(drafter.lengths) == 1 < WINDOW < max(drafter.lengths)


def test_a_perfect_drafter_is_accepted_whole_wherever_its_request_moves():
    model = tiny_llama(VOCABULARY, seed=5)
    target = packed(copy.deepcopy(model), rows=ROWS, limit=LIMIT)
    drafter = SelfDrafter(rounded_copy(target, rows=ROWS, limit=LIMIT, levels=2**20), None, gamma=4)
    engine = TorchEngine(target, drafter, max_requests=ROWS)
    running = [
        engine.submit(GenerationRequest(request_id=f"{i}", prompt=(i, 3), max_tokens=n))
        for i, n in enumerate((5, 30, 10, 30, 15, 30))
    ]
    engine.run()
    assert [r.rounds for r in running] == [1, 6, 2, 6, 3, 6]
