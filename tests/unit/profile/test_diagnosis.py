"""A planted bottleneck gets its class, and its remedy is the first recommendation."""

from __future__ import annotations

import pytest

from prime_train.core.spans import Span
from prime_train.profile.diagnosis import Probe, ProfileEvidence, Recommendation, Setup, diagnose
from prime_train.profile.measurement import EngineSpeed, Measurement, fit_engine, measure, quantiles
from prime_train.profile.recommendations import recommend
from tests.unit.profile.planted import rollout_steps, trainer_steps

PRETRAIN = Setup(
    micro_batch=2,
    global_batch=4,
    ctx_tokens=128,
    processes=1,
    loader_workers=1,
    checkpoint_interval_steps=1,
    async_save=True,
    cores=8,
)
RL = Setup(micro_batch=4, global_batch=8, ctx_tokens=512, processes=1, concurrency=8, max_behind_steps=0)


def measured(spans: list[Span]) -> Measurement:
    found = measure(spans, warm_up_steps=1)
    assert found is not None
    return found


def first(spans: list[Span], setup: Setup, probes: tuple[Probe, ...] = ()) -> tuple[str, Recommendation]:
    run = measured(spans)
    diagnosis = diagnose(run)
    return diagnosis.name, recommend(diagnosis, ProfileEvidence(run, setup, probes, fit_engine(spans)))[0]


def test_a_slow_loader_is_input_bound_and_needs_workers() -> None:
    kind, change = first(trainer_steps([("data", 0.6), ("forward", 0.1), ("backward", 0.2)]), PRETRAIN)
    assert kind == "input-bound"
    assert change.setting == "data.loader_workers = 3"
    assert change.gain == pytest.approx(3.0)


def test_a_checkpoint_every_step_is_checkpoint_bound() -> None:
    kind, change = first(trainer_steps([("forward", 0.1), ("backward", 0.2), ("checkpoint", 0.3)]), PRETRAIN)
    assert kind == "checkpoint-bound"
    assert change.setting == "checkpoint.interval_steps = 50"
    assert change.gain == pytest.approx(0.6 / (0.3 + 0.3 / 50))


def test_a_slow_all_reduce_is_communication_bound() -> None:
    kind, change = first(trainer_steps([("forward", 0.1), ("backward", 0.2), ("communication", 0.3)]), PRETRAIN)
    assert kind == "communication-bound"
    assert change.setting == "batch.global_batch = 64"
    assert change.gain == pytest.approx(0.6 * 16 / (0.3 * 16 + 0.3))


def test_tiny_batches_of_a_large_model_are_train_bound_and_need_larger_ones() -> None:
    probes = (Probe(1, 0.3), Probe(2, 0.32), Probe(4, 0.4))
    spans = trainer_steps([("forward", 0.1), ("backward", 0.2), ("optimizer", 0.1)])
    kind, change = first(spans, PRETRAIN._replace(global_batch=2), probes)
    assert kind == "train-bound"
    assert change.setting == "batch.micro_batch = 8, batch.global_batch = 8"
    assert change.gain == pytest.approx(4 * 0.4 / (0.1 + 0.4))


def test_a_larger_micro_batch_keeps_the_global_batch_where_it_can() -> None:
    spans = trainer_steps([("forward", 0.4), ("backward", 0.8), ("optimizer", 0.1)])
    _, change = first(spans, PRETRAIN._replace(global_batch=8), (Probe(1, 0.3), Probe(4, 0.6)))
    assert change.setting == "batch.micro_batch = 8"
    assert change.gain == pytest.approx(1.3 / (0.1 + 0.6))


def test_a_tool_that_sleeps_is_latency_bound() -> None:
    spans = list(rollout_steps(rollouts=8, concurrency=8, decode_s=0.2, tool_s=1.46))
    kind, change = first(spans, RL)
    assert kind == "latency-bound"
    assert change.text.startswith("tool: 1.5 s a call at 2.0 calls a rollout = 68% of the step")
    assert change.gain == pytest.approx((2 * 1.66 + 1) / (0.4 + 1))


def test_a_tool_behind_few_places_needs_more_rollouts_at_once() -> None:
    spans = list(rollout_steps(rollouts=8, concurrency=2, decode_s=0.1, tool_s=1.0))
    run = measured(spans)
    found = recommend(diagnose(run), ProfileEvidence(run, RL._replace(concurrency=2)))
    assert [one.setting for one in found if one.kind == "latency-bound"] == ["", "rl.concurrency = 8"]


def test_a_starved_engine_is_decode_bound_and_needs_more_rollouts_at_once() -> None:
    spans = list(rollout_steps(rollouts=8, concurrency=1, decode_s=0.5, tool_s=0.0))
    kind, change = first(spans, RL._replace(concurrency=1))
    assert kind == "decode-bound"
    assert change.setting == "rl.concurrency = 8"
    assert change.gain == pytest.approx(9 / 2)  # 8 s of decoding become 1 s


def test_the_gain_of_more_rollouts_at_once_comes_from_the_engines_own_steps() -> None:
    steps = [Span("decode", "engine", float(n), n + 0.010 + 0.001 * (1 + n % 4), 0, 1 + n % 4) for n in range(40)]
    speed = fit_engine(steps)
    assert speed is not None
    assert speed.fixed_s == pytest.approx(0.010)
    assert speed.sequence_s == pytest.approx(0.001)
    assert speed.gain(1, 10) == pytest.approx(10 * 11 / 20)
    assert fit_engine(steps[:10]) is None
    assert EngineSpeed(0.0, 0.0).gain(1, 2) == pytest.approx(2.0)


def test_the_cache_of_the_engine_limits_the_rollouts_at_once() -> None:
    spans = list(rollout_steps(rollouts=8, concurrency=1, decode_s=0.5, tool_s=0.0))
    _, change = first(spans, RL._replace(concurrency=1, kv_tokens=2048))
    assert change.setting == "rl.concurrency = 4"
    assert "engine decodes at 25% of its KV capacity" in change.text


def test_no_dominant_part_is_balanced() -> None:
    spans = trainer_steps([("data", 0.2), ("forward", 0.2), ("backward", 0.25), ("checkpoint", 0.2), ("evaluate", 0.3)])
    diagnosis = diagnose(measured(spans))
    assert diagnosis.name == "balanced"
    assert diagnosis.bottlenecks == ()


def test_idle_times_and_calls() -> None:
    run = measured(list(rollout_steps(rollouts=2, concurrency=2, decode_s=0.5, tool_s=0.5)))
    assert run.trainer_idle == pytest.approx(2 / 3)
    assert run.engine_idle == pytest.approx(2 / 3)
    assert run.decoding == pytest.approx(2.0)
    tool = run.call("tool")
    assert tool is not None
    assert (tool.calls, tool.per_rollout) == (8, 2.0)
    assert tool.mean_s == pytest.approx(0.5)


def test_shares_add_up_and_hidden_work_is_busy_only() -> None:
    spans = [*trainer_steps([("forward", 1.0)]), Span("data", "loader-0", 1.0, 4.0)]
    run = measured(spans)
    assert sum(one.share for one in run.shares) == pytest.approx(1.0)
    data = next(one for one in run.shares if one.component == "data")
    assert data.critical_s == 0.0
    assert data.busy_s == pytest.approx(3.0)


def test_quantiles() -> None:
    assert quantiles([]) == (0.0, 0.0, 0.0)
    assert quantiles([2.0]) == (2.0, 2.0, 2.0)
    assert quantiles([float(n) for n in range(101)]) == pytest.approx((50.0, 90.0, 99.0))
