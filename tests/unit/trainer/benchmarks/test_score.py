"""The likelihood of continuations, shared by the ranks and independent of the batches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train import spec
from prime_train.trainer.evaluation.score import Scored, Scorer, ScoreRequest
from prime_train.trainer.loops.step import Training, adamw
from prime_train.trainer.parallel import World
from tests.unit.trainer import tiny

ALONE = World(rank=0, size=1)
CTX_TOKENS = 40
MODEL = tiny.decoder(seed=4)
TOKENS = st.lists(st.integers(0, tiny.CONFIG.vocab_size - 1), min_size=1, max_size=30)


def training_of(world: World) -> Training:
    return Training(MODEL, adamw(MODEL, spec.Optim()), world, tiny.CPU, None)


def scorer(batch_tokens: int, world: World = ALONE) -> Scorer:
    return Scorer(training=training_of(world), ctx_tokens=CTX_TOKENS, batch_tokens=batch_tokens)


def naive(request: ScoreRequest) -> Scored:
    tokens = [*request.context, *request.continuation][-(CTX_TOKENS + 1) :]
    inputs = torch.tensor([tokens[:-1]])
    with torch.no_grad():
        logits = MODEL(inputs, torch.arange(inputs.shape[1])[None], None)[0]  # (T, V)
    wanted = torch.tensor(tokens[1:])[-len(request.continuation) :]
    log_probs = logits.log_softmax(-1)[-len(wanted) :]
    log_prob = float(log_probs.gather(1, wanted[:, None]).sum())
    return Scored(log_prob, bool((log_probs.argmax(-1) == wanted).all()))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.builds(ScoreRequest, TOKENS, TOKENS), max_size=9), st.sampled_from([1, 64, 100, 4096]))
def test_the_scores_are_those_of_one_request_at_a_time(requests: list[ScoreRequest], batch_tokens: int) -> None:
    found = scorer(batch_tokens).score(requests)
    expected = [naive(request) for request in requests]
    assert [one.log_prob for one in found] == pytest.approx([one.log_prob for one in expected], abs=1e-4)
    assert [one.is_greedy for one in found] == [one.is_greedy for one in expected]


class OneOfTwo(World):
    """A rank whose sums contain its own part only, so that a test can add the parts up."""

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        return values


def random_requests(count: int) -> list[ScoreRequest]:
    draw = torch.Generator().manual_seed(2)
    lengths = torch.randint(1, 18, (count, 2), generator=draw).tolist()
    return [
        ScoreRequest(*(torch.randint(0, 64, (length,), generator=draw).tolist() for length in pair)) for pair in lengths
    ]


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_ranks_share_the_requests(ranks: int) -> None:
    requests = random_requests(11)
    alone = scorer(64).score(requests)
    parts = [scorer(64, OneOfTwo(rank=rank, size=ranks)).score(requests) for rank in range(ranks)]
    for number, expected in enumerate(alone):
        counted = [part[number].log_prob for part in parts if part[number].log_prob]
        assert counted == pytest.approx([expected.log_prob], abs=1e-6)


def test_the_most_probable_continuation_is_greedy() -> None:
    context = [5, 9, 2]
    with torch.no_grad():
        logits = MODEL(torch.tensor([context]), torch.arange(3)[None], None)[0, -1]  # (V,)
    best = int(logits.argmax())
    greedy, other = scorer(64).score([ScoreRequest(context, [best]), ScoreRequest(context, [(best + 1) % 64])])
    assert greedy.is_greedy
    assert not other.is_greedy


def test_progress_is_reported_after_each_micro_batch() -> None:
    told: list[tuple[int, int]] = []

    def report(done: int, of: int) -> None:
        told.append((done, of))

    requests: Sequence[ScoreRequest] = random_requests(5)
    shared = Scorer(training=training_of(ALONE), ctx_tokens=CTX_TOKENS, batch_tokens=32, report=report)
    shared.score(requests)
    assert told[-1] == (len(told), len(told))
