"""Weights and adapter slots of a server against what vLLM printed."""

from __future__ import annotations

import pytest

from prime_train.core.units import GIB
from prime_train.estimate.model.shape import shape_from_config
from prime_train.estimate.serving.server_setup import default_setup
from prime_train.estimate.serving.server_weights import adapter_term, parts_of, weight_gib, weight_terms
from tests.unit.estimate.served import ROWS, Served, gpu, named, shape_of

_LIMIT = 0.02


@pytest.mark.parametrize("row", [row for row in ROWS if row.weights_gib is not None], ids=named)
def test_weights_are_what_vllm_printed(row: Served) -> None:
    assert row.weights_gib is not None
    assert weight_gib(row.setup) == pytest.approx(row.weights_gib, rel=_LIMIT)


def test_experts_are_spread_over_data_parallel_replicas_too() -> None:
    shape = shape_of("Qwen/Qwen3-30B-A3B")
    one = default_setup(shape, gpu(79.2))
    eight = one._replace(data_parallel=8, expert_parallel=True)
    share = {term.name: term.bytes for term in weight_terms(eight)}
    whole = {term.name: term.bytes for term in weight_terms(one)}
    assert share["experts"] == whole["experts"] / 8
    assert share["matrices"] == whole["matrices"]


def test_tensor_parallelism_splits_a_vision_tower() -> None:
    setup = default_setup(shape_of("Qwen/Qwen2.5-VL-7B-Instruct"), gpu(79.2))
    whole = {term.name: term.bytes for term in weight_terms(setup)}
    split = {term.name: term.bytes for term in weight_terms(setup._replace(tensor_parallel=2))}
    assert whole["vision_tower"] == 2 * split["vision_tower"]


def test_adapter_slots_take_what_their_shapes_state() -> None:
    setup = default_setup(shape_of("Qwen/Qwen3-8B"), gpu(79.2))._replace(lora_slots=8, lora_rank=16)
    term = adapter_term(setup)
    assert term is not None
    per_layer = (4096 + 4096) + 2 * (4096 + 1024) + (4096 + 4096) + 3 * (4096 + 12288)
    assert term.bytes == 8 * 16 * 36 * per_layer * 2
    assert adapter_term(setup._replace(lora_slots=0)) is None


def test_the_parts_of_a_model_are_all_of_it() -> None:
    for row in ROWS:
        shape = shape_of(row.model)
        assert sum(parts_of(shape)) == shape.parameters, shape.name


def test_positions_with_axes_make_a_table_four_times_as_long() -> None:
    plain = default_setup(shape_of("Qwen/Qwen2.5-VL-7B-Instruct")._replace(multimodal_rope=False), gpu(79.2))
    axes = plain._replace(shape=plain.shape._replace(multimodal_rope=True))
    assert (weight_gib(axes) - weight_gib(plain)) * GIB == pytest.approx(3 * 128000 * 128 * 2)
    config = {
        "model_type": "qwen2",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 256,
        "max_position_embeddings": 512,
    }
    assert shape_from_config({**config, "rope_scaling": {"type": "mrope", "mrope_section": [8, 4, 4]}}).multimodal_rope
    assert not shape_from_config({**config, "rope_scaling": None}).multimodal_rope
