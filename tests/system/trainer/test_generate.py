"""Sampling: the same text for the same seed, and no trace in the training state."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from prime_train import spec
from prime_train.trainer.evaluation.evaluate import Sampling, generate
from prime_train.trainer.model.decoder import Decoder, build, config_of
from tests.system.trainer.two_ranks import run_on_two_ranks, shard

PROMPTS = [[1, 2, 3], [4], list(range(5, 40))]


def decoder() -> Decoder:
    model = build(config_of(spec.Model(layers=2, hidden_size=32, heads=2), vocab_size=50), seed=0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4.0)
    return model


def sampling(**changes: object) -> Sampling:
    fields: dict[str, object] = {"new_tokens": 12, "ctx_tokens": 64, "temperature": 0.8, "seed": 5}
    return Sampling(**(fields | changes))  # type: ignore[arg-type]


class Counting(nn.Module):
    """A model that always predicts the last token plus one."""

    def forward(self, tokens: Tensor, positions: Tensor, attention: Tensor | None, at: Tensor) -> Tensor:
        assert attention is None
        assert torch.equal(positions, torch.arange(tokens.shape[1]).expand_as(tokens))
        last = tokens[torch.arange(len(at)), at]
        return torch.eye(50)[(last + 1) % 50] * 30


def test_each_prompt_is_continued_from_its_own_end() -> None:
    assert generate(Counting(), [[1, 2], [7], [40, 41, 42]], sampling(new_tokens=3, temperature=0)) == [
        [3, 4, 5],
        [8, 9, 10],
        [43, 44, 45],
    ]


def test_a_stop_token_ends_one_continuation_and_is_left_out() -> None:
    assert generate(Counting(), [[1], [7]], sampling(new_tokens=4, stop_tokens=frozenset({9}))) == [[2, 3, 4, 5], [8]]


def test_the_window_slides() -> None:
    assert generate(Counting(), [list(range(20))], sampling(new_tokens=5, ctx_tokens=8)) == [[20, 21, 22, 23, 24]]


def test_greedy_takes_the_likeliest_token_of_the_whole_sequence() -> None:
    model = decoder()
    sequence = [1, 2, 3]
    for _ in range(12):
        with torch.no_grad():
            logits = model(torch.tensor([sequence]), torch.arange(len(sequence)).unsqueeze(0), None)
        sequence.append(int(logits[0, -1].argmax()))
    assert generate(model, PROMPTS, sampling(temperature=0))[0] == sequence[3:]


def test_the_same_seed_draws_the_same() -> None:
    model = decoder()
    first = generate(model, PROMPTS, sampling())
    assert generate(model, PROMPTS, sampling()) == first
    assert generate(model, PROMPTS, sampling(seed=6)) != first
    assert [len(continuation) for continuation in first] == [12, 12, 12]


def test_draws_follow_the_distribution() -> None:
    class Coin(nn.Module):
        def forward(self, tokens: Tensor, *_: Tensor | None) -> Tensor:
            return torch.tensor([0.9, 0.1]).log().expand(len(tokens), 2)

    fair = generate(Coin(), [[0]] * 100, sampling(new_tokens=20, temperature=1.0))
    ones = sum(map(sum, fair)) / 2000
    assert ones == pytest.approx(0.1, abs=0.03)
    sharper = generate(Coin(), [[0]] * 100, sampling(new_tokens=20, temperature=0.5))
    assert sum(map(sum, sharper)) / 2000 == pytest.approx(0.01 / 0.82, abs=0.01)


def test_training_goes_on_as_if_nothing_was_sampled() -> None:
    model = decoder().train()
    torch.manual_seed(1)
    before = (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())  # type: ignore[index]
    generate(model, PROMPTS, sampling())
    after = (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate())  # type: ignore[index]
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]
    assert model.training
    assert all(weight.grad is None for weight in model.parameters())
    assert not generate(model.eval(), [], sampling())
    assert not model.training


def test_the_mode_is_put_back_after_a_failure() -> None:
    class Broken(nn.Module):
        def forward(self, *_: object) -> Tensor:
            raise RuntimeError("no")

    model = Broken()
    with pytest.raises(RuntimeError):
        generate(model, [[1]], sampling())
    assert model.training


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        generate(decoder(), [[1], []], sampling())


def _sharded_generate(rank: int) -> list[list[int]]:
    torch.manual_seed(rank)  # unlike global generators must not matter
    model = decoder()
    shard(model)
    return generate(model, PROMPTS, sampling())


def test_sharded_ranks_draw_the_same_as_one_process(tmp_path: Path) -> None:
    expected = generate(decoder(), PROMPTS, sampling())
    assert run_on_two_ranks(_sharded_generate, tmp_path) == [expected, expected]
