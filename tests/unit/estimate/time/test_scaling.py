"""Traffic by its formulas, and the ways over GPUs against each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.estimate.memory.train_setup import AdapterSize, Head, ModelLayout, Numerics, TrainSetup
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.time.scaling import (
    Transfer,
    all_reduce_bytes,
    best_micro_batch,
    counts,
    gather_bytes,
    largest_micro_batch,
    layouts,
    least_seconds,
    scale,
    traffic_of,
)
from prime_train.estimate.time.step_terms import links_of
from prime_train.estimate.values import RoleMemory
from tests.unit.estimate.served import gpu, shape_of

_H100 = gpu(79.2, "h100-80gb", 16)


_ONE = ModelLayout()


def _setup(layout: ModelLayout = _ONE, model: str = "Qwen/Qwen3-4B", sequences: int = 1) -> TrainSetup:
    return TrainSetup(
        program="prime-rl",
        era="2026-08",
        shape=shape_of(model),
        layout=layout,
        numerics=Numerics(),
        head=Head("tiled", chunk_tokens=1024, chunk_vocab=8192),
        tokens=sequences * 4096,
        ctx_tokens=4096,
        micro_batches=2,
        checkpointing="full",
        compiled=True,
    )


def _memory(setup: TrainSetup) -> RoleMemory:
    return training_memory(setup, _H100)


def _sent(setup: TrainSetup) -> dict[str, float]:
    return {transfer.name: transfer.bytes for transfer in traffic_of(setup)}


def test_one_gpu_sends_nothing() -> None:
    assert traffic_of(_setup()) == ()


def test_sharding_sends_three_times_what_its_formula_states() -> None:
    setup = _setup(ModelLayout("fsdp", shards=8))
    parameters = setup.shape.parameters
    sent = _sent(setup)
    assert sent["weight all-gather"] == pytest.approx(2 * 2 * 7 / 8 * parameters * 2)  # 2 micro-batches, 2 passes, bf16
    assert sent["gradient reduce-scatter"] == pytest.approx(2 * 7 / 8 * parameters * 4)  # fp32
    kept = _sent(_setup(ModelLayout("fsdp", shards=8, reshards=False)))
    assert kept["weight all-gather"] == pytest.approx(sent["weight all-gather"] / 2)


def test_copies_all_reduce_once_and_shards_of_copies_their_part() -> None:
    parameters = _setup().shape.parameters
    assert _sent(_setup(ModelLayout("ddp", replicas=8))) == {
        "gradient all-reduce": pytest.approx(2 * 7 / 8 * parameters * 4)
    }
    hybrid = _sent(_setup(ModelLayout("fsdp", shards=8, replicas=2)))
    assert hybrid["gradient all-reduce"] == pytest.approx(2 * 2 * 1 / 2 * parameters / 8 * 4)


def test_zero_2_moves_two_thirds_of_zero_3() -> None:
    same = Numerics(reduce=2.0)
    two = sum(_sent(_setup(ModelLayout("zero2", shards=4))._replace(numerics=same, micro_batches=1)).values())
    three = sum(_sent(_setup(ModelLayout("zero3", shards=4))._replace(numerics=same, micro_batches=1)).values())
    assert two == pytest.approx(three * 2 / 3)  # ZeRO, arXiv 1910.02054, s. 7: 2 and 3 times the parameters


def test_tensor_parallelism_sends_activations() -> None:
    setup = _setup(ModelLayout("none", tensor=4))
    size = 4096 * setup.shape.hidden_size * 2
    assert _sent(setup) == {"activation all-reduce": pytest.approx(2 * 36 * 6 * 2 * 3 / 4 * size)}
    assert sum(_sent(setup._replace(checkpointing="none")).values()) == pytest.approx(2 * 36 * 4 * 2 * 3 / 4 * size)


def test_an_adapter_s_gradients_are_all_that_is_reduced() -> None:
    adapter = AdapterSize("lora", 16, 30_000_000)
    sent = _sent(_setup(ModelLayout("fsdp", shards=8))._replace(adapter=adapter))
    assert sent["gradient reduce-scatter"] == pytest.approx(2 * 7 / 8 * 30_000_000 * 4)


def test_experts_and_long_contexts_send_too() -> None:
    setup = _setup(ModelLayout("fsdp", shards=8, expert=8, context=2), model="Qwen/Qwen3-30B-A3B")
    shape, sent = setup.shape, _sent(setup)
    assert sent["token all-to-all"] == pytest.approx(2 * 6 * 48 * 7 / 8 * 4096 * 8 * shape.hidden_size * 2)
    assert sent["key-value ring"] == pytest.approx(2 * 4 * 48 * 1 * 2 * 4096 * 4 * 128 * 2)


def test_links_inside_a_machine_and_between_machines() -> None:
    links = links_of(_H100)
    inside = Transfer("x", 1e9, 8, 8, "", "")
    whole_machines = Transfer("x", 1e9, 16, 8, "", "")
    one_from_each = Transfer("x", 1e9, 2, 1, "", "")
    assert least_seconds(inside, _H100) == 1e9 / links.node
    assert least_seconds(whole_machines, _H100) == 1e9 / min(links.node, 8 * links.network)
    assert least_seconds(one_from_each, _H100) == 1e9 / links.network


def test_ring_formulas() -> None:
    assert gather_bytes(8.0, 8) == 7.0
    assert all_reduce_bytes(8.0, 8) == 14.0
    assert gather_bytes(8.0, 1) == 0.0


def test_every_way_over_every_count() -> None:
    rows = scale(_setup(), _H100, _memory)
    assert {(row.strategy, row.gpus) for row in rows} >= {
        ("one GPU", 1),
        ("FSDP", 2),
        ("DDP", 16),
        ("HSDP", 16),
        ("TP", 8),
        ("TP", 16),
    }
    for row in rows:
        assert row.layout.gpus == row.gpus
        assert row.sent_bytes == sum(transfer.bytes for transfer in row.transfers)
        assert (row.least_s > 0) == (row.gpus > 1)


def test_sharding_holds_a_larger_micro_batch_than_copies() -> None:
    rows = {(row.strategy, row.gpus): row for row in scale(_setup(), _H100, _memory)}
    assert rows["FSDP", 8].largest_micro_batch > rows["DDP", 8].largest_micro_batch
    assert rows["FSDP", 8].largest_micro_batch >= rows["HSDP", 8].largest_micro_batch
    assert rows["FSDP", 8].memory.needed_bytes <= rows["DDP", 8].memory.needed_bytes


def test_the_largest_micro_batch_is_the_largest() -> None:
    setup = _setup(ModelLayout("fsdp", shards=8))
    usable = _H100.usable_bytes
    most = largest_micro_batch(setup, usable, _memory)
    assert most > 0
    assert _memory(setup._replace(tokens=most * 4096)).needed_bytes <= usable
    assert _memory(setup._replace(tokens=(most + 1) * 4096)).needed_bytes > usable
    assert largest_micro_batch(_setup(model="Qwen/Qwen3-32B"), usable, _memory) == 0


def test_heads_that_do_not_divide_are_not_cut() -> None:
    names = [name for name, _ in layouts(_setup(model="Qwen/Qwen2.5-7B-Instruct"), 8, 8)]  # 28 heads
    assert "TP" not in names


def test_counts() -> None:
    assert counts(1) == (1,)
    assert counts(8) == (1, 2, 4, 8)
    assert counts(12) == (1, 2, 4, 8, 12)
    assert counts(0) == ()


@given(st.sampled_from((2, 4, 8, 16, 64)), st.integers(1, 8))
def test_memory_never_rises_and_traffic_never_falls_with_more_shards(gpus: int, sequences: int) -> None:
    few, many = ModelLayout("fsdp", shards=gpus), ModelLayout("fsdp", shards=2 * gpus)
    small, large = _setup(few, sequences=sequences), _setup(many, sequences=sequences)
    assert _memory(large).needed_bytes <= _memory(small).needed_bytes
    assert sum(_sent(large).values()) >= sum(_sent(small).values())


@given(st.integers(1, 64), st.integers(1, 64))
def test_a_larger_gpu_never_holds_less(usable_gib: int, more_gib: int) -> None:
    setup = _setup(ModelLayout("fsdp", shards=4))
    held = largest_micro_batch(setup, usable_gib * 2**30, _memory)
    assert largest_micro_batch(setup, (usable_gib + more_gib) * 2**30, _memory) >= held


def test_the_best_micro_batch_is_the_smallest_near_the_highest_speed() -> None:
    speeds = {1: 10.0, 2: 18.0, 4: 19.9, 8: 20.0, 11: 20.0}
    setup = _setup()

    def speed_of(other: TrainSetup) -> float:
        return speeds[other.tokens // other.ctx_tokens]

    assert best_micro_batch(setup, 11, speed_of) == (4, 19.9)
    assert best_micro_batch(setup, 2, speed_of) == (2, 18.0)
    assert best_micro_batch(setup, 0, speed_of) == (0, 0.0)
    assert best_micro_batch(setup, 4, lambda _: 0.0) == (0, 0.0)
