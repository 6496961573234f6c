"""The time of a step's rollouts, and who waits for whom."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.estimate import hardware
from prime_train.estimate.time.rl_step_time import RolloutSetup, concurrency_of, overlap_of, rollout_time
from prime_train.estimate.values import Interval
from tests.unit.estimate.step_cases import LLAMA_1B, QWEN_30B, known

H100 = hardware.hardware_from_name("8xh100-80gb")
LLAMA_8B = known("meta-llama/Llama-3.1-8B-Instruct")


def ask(**changes: Any) -> RolloutSetup:
    """128 rollouts of 512 + 1024 tokens on four engines of one H100 each."""
    shape = changes.get("shape", LLAMA_8B)
    kv_token_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * 2
    asked = RolloutSetup(shape, 128, 512, 1024, 4096, 400_000, kv_token_bytes, sequences=256, group_size=8, gpus=4)
    return asked._replace(**changes)


def seconds(asked: RolloutSetup) -> float:
    return rollout_time(asked, H100).seconds.typical


def asks() -> st.SearchStrategy[RolloutSetup]:
    def build(shape: Any, counts: tuple[int, int, int], mean: int, extra: int, cache: int) -> RolloutSetup:
        rollouts, prompt, group = counts
        longest = mean + extra
        kv_tokens = prompt + longest + cache
        return ask(
            shape=shape,
            rollouts=rollouts,
            prompt_tokens=prompt,
            completion_tokens=mean,
            longest_completion_tokens=longest,
            kv_tokens=kv_tokens,
            group_size=group,
        )

    counts = st.tuples(st.integers(1, 4096), st.integers(1, 32768), st.integers(1, 16))
    shapes = st.sampled_from((LLAMA_1B, LLAMA_8B, QWEN_30B))
    return st.builds(build, shapes, counts, st.integers(1, 32768), st.integers(0, 65536), st.integers(0, 10**6))


@given(asks())
def test_times_are_in_order_and_are_of_all_tokens(asked: RolloutSetup) -> None:
    time = rollout_time(asked, H100)
    assert 0 < time.seconds.low < time.seconds.typical < time.seconds.high < math.inf
    tokens = asked.rollouts * asked.completion_tokens
    assert time.tokens_per_s.typical * time.seconds.typical == pytest.approx(tokens)
    assert time.prefill_s.typical < time.seconds.typical
    assert 1 <= time.concurrency <= asked.sequences


@given(asks(), st.integers(1, 1000))
def test_time_never_falls_when_more_is_asked(asked: RolloutSetup, more: int) -> None:
    before = seconds(asked)
    assert seconds(asked._replace(rollouts=asked.rollouts + more)) >= before * (1 - 1e-9)
    longer = asked._replace(
        longest_completion_tokens=asked.longest_completion_tokens + more, kv_tokens=asked.kv_tokens + more
    )
    assume(concurrency_of(longer) == concurrency_of(asked._replace(kv_tokens=asked.kv_tokens + more)))
    assert seconds(longer) >= seconds(asked._replace(kv_tokens=asked.kv_tokens + more)) * (1 - 1e-9)


def test_decoding_a_small_batch_is_reading_the_weights_once_per_token() -> None:
    time = rollout_time(ask(rollouts=4, gpus=4), H100)
    # 8 B parameters less the embedding, 2 bytes each, at 60 % of 3.35 TB/s, and 5 ms beside it.
    weights_s = (LLAMA_8B.parameters - 128256 * 4096) * 2 / (0.6 * 3.35e12)
    assert time.decode_step_s.typical == pytest.approx(weights_s + 0.005, rel=0.03)
    assert time.limited_by == "rollouts"


def test_a_small_cache_or_a_small_limit_holds_rollouts_back() -> None:
    free, cramped, limited = (
        rollout_time(asked, H100)
        for asked in (ask(rollouts=2048), ask(rollouts=2048, kv_tokens=20_000), ask(sequences=4))
    )
    assert free.limited_by == "max_num_seqs"
    assert cramped.limited_by == "kv cache"
    assert (limited.limited_by, limited.concurrency) == ("max_num_seqs", 4)
    assert cramped.seconds.typical > 2 * free.seconds.typical


def test_a_group_shares_the_prefill_of_its_prompt() -> None:
    alone, shared = (rollout_time(ask(group_size=size, prompt_tokens=8192), H100) for size in (1, 16))
    assert shared.prefill_s.typical == pytest.approx(alone.prefill_s.typical / 16)


def test_a_mixture_reads_more_experts_the_more_rollouts_there_are() -> None:
    one, many = (rollout_time(ask(shape=QWEN_30B, rollouts=n), H100).decode_step_s.typical for n in (4, 1024))
    dense = (rollout_time(ask(rollouts=n), H100).decode_step_s.typical for n in (4, 1024))
    grown = [later / first for first, later in ((one, many), tuple(dense))]
    assert grown[0] > grown[1]


def test_tensor_parallelism_shortens_a_long_decode() -> None:
    assert seconds(ask(tp=4, rollouts=4)) < seconds(ask(tp=1, rollouts=4))


@pytest.mark.parametrize("count", ["rollouts", "prompt_tokens", "group_size", "gpus", "tp"])
def test_a_count_of_zero_is_refused(count: str) -> None:
    with pytest.raises(UserError) as refusal:
        rollout_time(ask(**{count: 0}), H100)
    assert refusal.value.what.endswith(" = 0")
    assert refusal.value.fix


def exact(value: float) -> Interval:
    return Interval(value, value, value)


def test_taking_turns_adds_up_and_overlapping_takes_the_longer() -> None:
    turns = overlap_of(exact(20), exact(60), exact(5), async_level=0)
    assert turns.step_s == exact(85)
    assert turns.trainer_idle == exact(1 - 25 / 85)
    beside = overlap_of(exact(20), exact(60), exact(5), async_level=1)
    assert beside.step_s == exact(65)
    assert beside.trainer_idle == exact(1 - 25 / 65)
    assert beside.inference_idle == exact(0.0)
    assert beside.bound_by == "inference"
    assert overlap_of(exact(20), exact(60), exact(5), async_level=8, shared=True).step_s == turns.step_s


def intervals() -> st.SearchStrategy[Interval]:
    sides = st.tuples(st.floats(0.1, 1e4), st.floats(1.0, 3.0), st.floats(1.0, 3.0))
    return sides.map(lambda part: Interval(part[0] / part[1], part[0], part[0] * part[2]))


@given(intervals(), intervals(), intervals(), st.integers(0, 4))
def test_no_component_idles_for_more_than_the_step(
    trainer_s: Interval, rollouts_s: Interval, handover_s: Interval, async_level: int
) -> None:
    joined = overlap_of(trainer_s, rollouts_s, handover_s, async_level)
    assert joined.step_s.low <= joined.step_s.typical <= joined.step_s.high
    for idle in (joined.trainer_idle, joined.inference_idle):
        assert 0 <= idle.low <= idle.typical <= idle.high < 1
    assert joined.step_s.typical >= max(trainer_s.typical, rollouts_s.typical)
    assert overlap_of(trainer_s, rollouts_s, handover_s, 1).step_s.typical <= joined.step_s.typical
