"""Each term of a training's memory, computed by hand for a model of a few numbers."""

from __future__ import annotations

from typing import Any

import pytest

from prime_train.core.units import GIB
from prime_train.estimate.memory import activations, sharding, training
from prime_train.estimate.memory.coefficients import Coefficients, Fitted, fitted_entry
from prime_train.estimate.memory.train_setup import (
    AdapterSize,
    Head,
    HeadKind,
    ModelLayout,
    Numerics,
    Offload,
    TrainSetup,
    features_of,
)
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.values import Term
from prime_train.estimate.verdict import judge_role
from tests.unit.estimate.training_cases import EIGHT_GPUS

TOKENS = 10
DENSE = ModelShape(
    name="test/plain-1b",
    vocab_size=100,
    layers=4,
    hidden_size=8,
    heads=4,
    kv_heads=1,
    head_dim=5,
    mlp_size=30,
    parameters=5000,
    tie_embeddings=False,
    source="test",
    dense_layers=4,
)
MIXTURE = DENSE._replace(
    dense_layers=1, experts=3, experts_per_token=2, expert_mlp_size=6, shared_expert_mlp_size=10, parameters=9000
)
# No two alike, and none of them 1: a factor that is missing, or divides, changes the result.
K = Coefficients(
    gather_alone=1.5,
    gather=2.0,
    root_gather_alone=1.25,
    root_gather=3.0,
    embedding_gather=0.5,
    block_gradient=1.75,
    reduce=2.25,
    root_gradient=4.5,
    whole_copy=0.75,
    bucket_bytes=1234.0,
    residual=1.5,
    residual_sharded=1.75,
    kept_hidden=3.0,
    kept_query=5.0,
    kept_kv=7.0,
    kept_mlp=22.0,
    kept_eager=13.0,
    kept_quantized=17.0,
    kept_selective=0.6,
    block_hidden=24.0,
    block_query=8.0,
    block_kv=4.0,
    block_mlp=10.0,
    eager_hidden=3.0,
    eager_mlp=5.0,
    expert_hidden=6.0,
    expert_mlp=9.0,
    adapter_hidden=2.0,
    adapter_mlp=7.0,
    adapter_kept=19.0,
    scaled_kept=23.0,
    tensor_gather=3.0,
    in_flight=4.0,
    backward_block=2.5,
    logit=14.0,
    logit_fused=6.0,
    logit_compiled=5.0,
    chunk_logit=24.0,
    tile_logit=9.0,
    chunks_kept=2.0,
    head_hidden=8.0,
    embeddings_trained=12.0,
    optimizer_temporary=6.0,
    reserve=1.08,
    reserve_static=1.02,
    workspace_bytes=100.0,
)
LORA = AdapterSize("lora", 8, 240)


def setup(shape: ModelShape = DENSE, **changes: Any) -> TrainSetup:
    plain = TrainSetup("hf", "", shape, ModelLayout(), Numerics(), Head(), TOKENS, TOKENS, compiled=True)
    return plain._replace(**changes)


def only(terms: tuple[Term, ...]) -> float:
    (term,) = terms
    return term.bytes


# --- activations -----------------------------------------------------------------------------------

KEPT = 3 * 8 + 5 * 20 + 7 * 10 + 22 * 30  # hidden 8, query 20, key and value 10, MLP 30


@pytest.mark.parametrize(
    ("shape", "changes", "numbers"),
    [
        (DENSE, {}, KEPT),
        (DENSE._replace(kv_heads=2), {}, KEPT + 7 * 10),
        (DENSE._replace(dense_layers=0), {}, KEPT),
        (DENSE._replace(experts_per_token=2, expert_mlp_size=6, shared_expert_mlp_size=10), {}, KEPT),
        (DENSE, {"compiled": False}, KEPT + 13 * 8),
        (DENSE._replace(gated_mlp=False), {}, KEPT - 11 * 30),
        (DENSE._replace(qk_norm=True), {}, KEPT + 20 + 5),
        (DENSE._replace(qk_norm=True), {"numerics": Numerics(autocast=True)}, KEPT + 20 + 5 + 2 * 8),
        (
            DENSE._replace(qk_norm=True),
            {"numerics": Numerics(autocast=True), "compiled": False},
            KEPT + 13 * 8 + 20 + 5 + 2 * 8 + 3 * (20 + 5),
        ),
        (DENSE, {"adapter": LORA}, KEPT + 19 * 8),
        (
            DENSE,
            {"adapter": LORA._replace(scaled_outputs=40), "layout": ModelLayout(tensor=2)},
            (KEPT + 19 * 8 + 3 * 40) / 2,
        ),
        (DENSE, {"adapter": LORA._replace(kind="adapter")}, KEPT),
        (DENSE, {"adapter": LORA._replace(kind="adapter_v2")}, KEPT + 23 * (2 * 8 + 20 + 10 + 2 * 30)),
        (
            DENSE._replace(gated_mlp=False),
            {"adapter": LORA._replace(kind="adapter_v2")},
            KEPT - 11 * 30 + 23 * (2 * 8 + 20 + 10 + 30),
        ),
        (DENSE, {"quantization": "nf4"}, KEPT + 17 * 30),
        (DENSE, {"quantization": "float8"}, KEPT),
        (DENSE, {"layout": ModelLayout(tensor=2)}, KEPT / 2),
        (MIXTURE, {}, KEPT - 22 * 30 + 22 * (10 + 12) + 2 * 2 * 8),
        (MIXTURE, {"layout": ModelLayout(tensor=2)}, (KEPT - 22 * 30 + 22 * (10 + 12) + 2 * 2 * 8) / 2),
        (MIXTURE, {"quantization": "int8"}, KEPT - 22 * 30 + 22 * (10 + 12) + 2 * 2 * 8 + 17 * (10 + 12)),
    ],
)
def test_a_layer_keeps_the_inputs_of_its_operations(shape: ModelShape, changes: dict[str, Any], numbers: float) -> None:
    assert activations.kept_per_layer(setup(shape, **changes), K) == pytest.approx(2 * numbers)


@pytest.mark.parametrize(
    ("layout", "layers"),
    [
        (ModelLayout(), 4),
        (ModelLayout(pipeline=2), 2),
        (ModelLayout("fsdp", shards=4), 4),
        (ModelLayout("device_map", shards=2), 2),
        (ModelLayout("device_map", shards=2, pipeline=2), 1),
    ],
)
def test_layers_are_split_by_pipelines_and_device_maps(layout: ModelLayout, layers: float) -> None:
    assert activations.layers_on_gpu(setup(layout=layout)) == layers


@pytest.mark.parametrize(
    ("changes", "name", "size", "source"),
    [
        ({}, "saved activations", 4 * 20 * 2 * KEPT, activations.OPERATIONS),
        ({"checkpointing": "selective"}, "saved activations", 4 * 20 * 2 * KEPT * 0.6, activations.OPERATIONS),
        ({"checkpointing": "full"}, "saved residuals", 4 * 20 * 1.5 * 2 * 8, activations.CHECKPOINTING),
        (
            {"checkpointing": "full", "layout": ModelLayout(tensor=2)},
            "saved residuals",
            4 * 20 * 1.5 * 2 * 4,
            activations.CHECKPOINTING,
        ),
        (
            {"offload": Offload(activations=True, in_flight=2)},
            "offloaded residuals in flight",
            (4 * 2 / 5) * 20 * 1.5 * 2 * 8,
            activations.CHECKPOINTING,
        ),
        (
            {"offload": Offload(activations=True, in_flight=10)},
            "offloaded residuals in flight",
            4 * 20 * 1.5 * 2 * 8,
            activations.CHECKPOINTING,
        ),
    ],
)
def test_the_forward_saves_what_checkpointing_and_offloading_leave(
    changes: dict[str, Any], name: str, size: float, source: str
) -> None:
    (term,) = activations.saved_terms(setup(**changes), K, 4, in_flight=2)
    assert (term.name, term.source) == (name, source)
    assert term.bytes == pytest.approx(size)
    (one,) = activations.saved_terms(setup(**changes), K, 4)
    assert one.bytes == pytest.approx(size / 2)


# Of the bundled trainer: query, key and value, attention's output, the MLP's three results; attention and the stream.
SELECTED = (20 + 10 + 8 + 2 * 30 + 8) + 20 + 8


@pytest.mark.parametrize(
    ("changes", "name", "each"),
    [
        ({"checkpointing": "selective"}, "saved activations", 2 * SELECTED),
        (
            {"checkpointing": "selective", "numerics": Numerics(autocast=True)},
            "saved activations",
            2 * (SELECTED + 8),
        ),
        ({"checkpointing": "full"}, "saved residuals", 1.5 * 2 * 8),
        ({"checkpointing": "full", "numerics": Numerics(autocast=True)}, "saved residuals", 2 * 1.5 * 2 * 8),
        (
            {"checkpointing": "full", "numerics": Numerics(autocast=True), "program": "hf"},
            "saved residuals",
            1.5 * 2 * 8,
        ),
    ],
)
def test_the_bundled_trainer_keeps_the_results_of_products_and_an_fp32_stream(
    changes: dict[str, Any], name: str, each: float
) -> None:
    (term,) = activations.saved_terms(setup(**{"program": "bundled", **changes}), K, 4)
    assert term.name == name
    assert term.bytes == pytest.approx(4 * TOKENS * each)


@pytest.mark.parametrize("without", ["", "backward", "adapter", "layout"])
def test_adapters_of_a_gathered_base_keep_gradients_in_the_backward(without: str) -> None:
    changes: dict[str, Any] = {"adapter": LORA, "layout": ModelLayout("fsdp", shards=4), "backward": True}
    changes.pop(without, None)
    backward = changes.pop("backward", False)
    (term,) = activations.saved_terms(setup(checkpointing="full", **changes), K, 4, backward=backward)
    assert term.bytes == pytest.approx(4 * TOKENS * 1.5 * 2 * 8 * (1.0 if without else 1.75))
    if without == "backward":
        (usual,) = activations.saved_terms(setup(checkpointing="full", **changes), K, 4)
        assert usual == term


def test_of_several_blocks_one_is_checkpointed() -> None:
    residuals, others = activations.saved_terms(setup(checkpointing="full", checkpoint_every=2), K, 5)
    assert (residuals.name, others.name) == ("saved residuals", "saved activations of the other blocks")
    assert residuals.bytes == pytest.approx(3 * TOKENS * 1.5 * 2 * 8)
    assert others.bytes == pytest.approx(2 * TOKENS * 2 * KEPT)
    for changes in ({"checkpointing": "full"}, {"checkpoint_every": 2}):
        assert len(activations.saved_terms(setup(**changes), K, 5)) == 1


BLOCK = 24 * 8 + 8 * 20 + 4 * 10 + 10 * 30


@pytest.mark.parametrize(
    ("shape", "changes", "each"),
    [
        (DENSE, {"checkpointing": "full"}, BLOCK),
        (DENSE, {"checkpointing": "full", "compiled": False}, BLOCK + 3 * 8 + 5 * 30),
        (DENSE, {"checkpointing": "full", "adapter": LORA}, BLOCK + 2 * 8 + 7 * 30),
        (MIXTURE, {"checkpointing": "full"}, BLOCK - 10 * 30 + 10 * 10 + 6 * 2 * 8 + 9 * 12),
        (DENSE, {}, 2.5 * 2 * (8 + 30)),
        (DENSE, {"checkpointing": "selective"}, 2.5 * 2 * (8 + 30)),
        (MIXTURE, {}, 2.5 * 2 * (8 + 10 + 12)),
        (MIXTURE, {"adapter": LORA}, 2.5 * 2 * (8 + 10 + 12) + 2 * 8 + 7 * (10 + 12)),
        (
            DENSE,
            {"adapter": LORA._replace(scaled_outputs=40), "layout": ModelLayout(tensor=2)},
            (2.5 * 2 * (8 + 30) + 2 * 8 + 7 * 30 + 3 * 2 * 40) / 2,
        ),
        (DENSE, {"program": "bundled"}, 2.5 * 2 * (8 + 30)),
        (DENSE, {"program": "bundled", "checkpointing": "full"}, 2 * KEPT + 2.5 * 2 * (8 + 30)),
        (
            MIXTURE,
            {"program": "bundled", "checkpointing": "selective"},
            2 * (KEPT - 22 * 30 + 22 * (10 + 12) + 2 * 2 * 8) + 2.5 * 2 * (8 + 10 + 12),
        ),
    ],
)
def test_the_backward_of_a_block_recomputes_what_was_dropped(
    shape: ModelShape, changes: dict[str, Any], each: float
) -> None:
    (term,) = activations.block_terms(setup(shape, **changes), K)
    recomputes = changes.get("checkpointing") == "full" or {"program", "checkpointing"} <= changes.keys()
    assert term.name == ("recomputed block" if recomputes else "gradients of a block's activations")
    assert term.bytes == pytest.approx(TOKENS * each)


def test_tensor_parallelism_gathers_the_residual_stream() -> None:
    assert activations.stream_terms(setup(), K) == ()
    assert only(activations.stream_terms(setup(layout=ModelLayout(tensor=2)), K)) == 3 * 2 * 8 * TOKENS


# --- logits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "size"),
    [
        (Head("in_place"), (4 + 2) * 10 * 100),
        (Head("full"), 14 * 10 * 100),
        (Head("vocab_chunked", chunk_vocab=40), 24 * 10 * 40),
        (Head("vocab_chunked", chunk_vocab=400), 24 * 10 * 100),
        (Head("token_chunked", chunk_tokens=4), 14 * 4 * 100 + 2 * 10 * 100),
        (Head("token_chunked", chunk_tokens=40), 14 * 10 * 100 + 2 * 10 * 100),
        (Head("token_chunked", chunk_tokens=4, compiled=True), (5 - 2) * 4 * 100 + 2 * 10 * 100),
        (Head("full", compiled=True), 5 * 10 * 100),
        (Head("tiled", chunk_tokens=4), 9 * 4 * 100),
        (Head("tiled", chunk_tokens=40), 9 * 10 * 100),
    ],
)
def test_logits_take_a_chunk_or_all_tokens_by_the_vocabulary(head: Head, size: float) -> None:
    for tensor in (1, 2):
        terms = activations.logits_terms(setup(head=head, layout=ModelLayout(tensor=tensor)), K)
        if head.chunk_vocab != 40:  # a chunk below the vocabulary of one GPU is not split
            assert terms[1].bytes == size / tensor
        assert terms[0].bytes == 8 * TOKENS * 8 / tensor
    assert only(activations.logits_terms(setup(head=head), K)[1:]) == size


def test_a_chunk_of_the_vocabulary_is_not_split_below_its_size() -> None:
    chunked = setup(head=Head("vocab_chunked", chunk_vocab=40), layout=ModelLayout(tensor=2))
    assert only(activations.logits_terms(chunked, K)[1:]) == 24 * TOKENS * 40


@pytest.mark.parametrize(
    ("head", "name", "size"),
    [
        (Head("fused_loss"), "logits and loss", 6 * 10 * 100),
        (Head("fused", chunk_tokens=4), "logits of a chunk", 2 * 4 * 100),
        (Head("fused", chunk_tokens=40), "logits of a chunk", 2 * 10 * 100),
        (Head("in_chunks", chunk_tokens=4), "logits of a chunk", (4 + 2) * 4 * 100),
        (Head("in_chunks", chunk_tokens=40), "logits of a chunk", (4 + 2) * 10 * 100),
        (Head("logprobs", chunk_tokens=4), "logits of a chunk", (4 + 4) * 4 * 100),
        (Head("logprobs", chunk_tokens=40), "logits of a chunk", (4 + 4) * 10 * 100),
    ],
)
def test_a_loss_that_computes_its_gradient_at_once_keeps_fewer_logits(head: Head, name: str, size: float) -> None:
    states, logits = activations.logits_terms(setup(head=head), K)
    assert (logits.name, logits.bytes, logits.source) == (name, size, activations.CHUNKED)
    assert states.name == "hidden states of the head"
    in_chunks = head.kind in ("in_chunks", "logprobs")  # their gradients are there beside them, in the compute type
    assert states.bytes == TOKENS * 8 * (2 * 2 if in_chunks else 8)
    assert states.source == (activations.CHUNKED if in_chunks else activations.FULL)


def test_the_terms_of_the_head_are_named_by_what_they_hold() -> None:
    kinds: tuple[HeadKind, ...] = ("in_place", "full", "vocab_chunked", "token_chunked", "tiled")
    names = [activations.logits_terms(setup(head=Head(kind)), K)[1].name for kind in kinds]
    assert names == [*["logits and loss"] * 2, *["logits of a chunk"] * 3]


# --- groups of weights -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        (DENSE, (800, 800, (5000 - 800 - 800 - 8) / 4, 0, 5000)),
        (DENSE._replace(tie_embeddings=True), (800, 0, (5000 - 800 - 8) / 4, 0, 5000)),
        (DENSE._replace(vision_parameters=392), (800, 800, (5000 - 392 - 1608) / 4, 0, 5000)),
        (DENSE._replace(parameters=100), (800, 800, 0, 0, 100)),
        (DENSE._replace(layers=0), (800, 800, 5000 - 1608, 0, 5000)),
        (MIXTURE, (800, 800, (9000 - 1608 - 3 * 432) / 4 + 432, 432, 9000)),
        (MIXTURE._replace(gated_mlp=False), (800, 800, (9000 - 1608 - 3 * 288) / 4 + 288, 288, 9000)),
        (MIXTURE._replace(parameters=2000), (800, 800, 432, 432, 2000)),
        (MIXTURE._replace(dense_layers=4), (800, 800, (9000 - 1608 - 432) / 4 + 432, 432, 9000)),
        (MIXTURE._replace(layers=0, dense_layers=0), (800, 800, (9000 - 1608 - 432) + 432, 432, 9000)),
    ],
)
def test_weights_are_grouped_as_they_are_gathered(shape: ModelShape, groups: tuple[float, ...]) -> None:
    assert sharding.groups_of(shape) == pytest.approx(groups)


GROUPS = sharding.groups_of(DENSE)
MIXED = sharding.groups_of(MIXTURE)
FSDP = ModelLayout("fsdp", shards=2)


def test_the_root_is_the_head_or_the_tied_embedding() -> None:
    assert GROUPS._replace(embedding=7.0).root == 800
    assert sharding.groups_of(DENSE._replace(tie_embeddings=True)).root == 800
    assert GROUPS._replace(embedding=7.0, head=0.0).root == 7


@pytest.mark.parametrize(
    ("layout", "blocks"),
    [
        (FSDP, 2),
        (FSDP._replace(sharding="zero3"), 2),
        (FSDP._replace(shards=1), 1.5),
        (FSDP._replace(tensor=2), 2 / 2),
        (FSDP._replace(pipeline=4), 1),
        (FSDP._replace(reshards=False), 4),
        (FSDP._replace(reshards=False, pipeline=2), 2),
    ],
)
def test_blocks_are_gathered_ahead_of_their_use(layout: ModelLayout, blocks: float) -> None:
    assert only(sharding.block_gather_terms(setup(layout=layout), GROUPS, K)) == blocks * GROUPS.block * 2


def test_a_gathered_block_has_this_gpus_experts_in_the_type_of_the_base() -> None:
    parallel = setup(MIXTURE, layout=FSDP._replace(tensor=2, expert=3))
    numbers = (MIXED.block - 432) / 2 + 432 / 2 / 3
    assert only(sharding.block_gather_terms(parallel, MIXED, K)) == pytest.approx(2 * numbers * 2)
    quantized = parallel._replace(quantization="nf4")
    assert only(sharding.block_gather_terms(quantized, MIXED, K)) == pytest.approx(2 * numbers * 4.5 / 8)


@pytest.mark.parametrize(
    ("layout", "tied", "size"),
    [
        (FSDP, False, (3 * 800 + 0.5 * 800) * 2),
        (FSDP, True, 3 * 800 * 2),
        (FSDP._replace(shards=1), False, 1.25 * 800 * 2),
        (FSDP._replace(tensor=2), False, (3 * 800 + 0.5 * 800) * 2 / 2),
    ],
)
def test_the_head_and_an_untied_embedding_are_gathered(layout: ModelLayout, tied: bool, size: float) -> None:
    groups = sharding.groups_of(DENSE._replace(tie_embeddings=tied))
    assert only(sharding.root_gather_terms(setup(layout=layout), groups, K)) == size


@pytest.mark.parametrize("kind", ["none", "ddp", "zero1", "zero2", "device_map"])
def test_whole_weights_are_neither_gathered_nor_reduced_by_block(kind: str) -> None:
    whole = setup(layout=ModelLayout(kind, shards=2))  # type: ignore[arg-type]
    assert sharding.block_gather_terms(whole, GROUPS, K) == ()
    assert sharding.root_gather_terms(whole, GROUPS, K) == ()
    assert sharding.block_reduction_terms(whole, GROUPS, K) == ()
    assert sharding.root_gradient_terms(whole, GROUPS, K) == ()


@pytest.mark.parametrize(
    ("changes", "trained"),
    [
        ({}, MIXED.block),
        ({"layout": FSDP._replace(tensor=2, expert=3)}, ((MIXED.block - 432) + 432 / 3) / 2),
        ({"adapter": LORA._replace(slots=3)}, 240 * 3 / 4),
        ({"adapter": LORA._replace(slots=3), "layout": FSDP._replace(tensor=2)}, 240 * 3 / 4 / 2),
        ({"adapter": LORA, "shape": MIXTURE._replace(layers=0)}, 240),
    ],
)
def test_the_gradient_of_a_block_counts_what_is_trained_in_it(changes: dict[str, Any], trained: float) -> None:
    asked = setup(**{"shape": MIXTURE, "layout": FSDP, "numerics": Numerics(compute=2, reduce=4), **changes})
    assert sharding.trained_block_numbers(asked, MIXED) == pytest.approx(trained)
    (term,) = sharding.block_reduction_terms(asked, MIXED, K)
    assert term.name == "gradient of a block and its reduction"
    assert term.bytes == pytest.approx(trained * (1.75 * 2 + 2.25 * 4))


def test_a_pipeline_keeps_the_whole_gradients_of_its_stage() -> None:
    staged = setup(layout=FSDP._replace(pipeline=2))
    (term,) = sharding.block_reduction_terms(staged, GROUPS, K)
    assert (term.name, term.bytes) == ("whole gradients of a stage", 2 * GROUPS.block * 4)


def test_gradients_of_the_whole_model_wait_for_the_last_of_several_micro_batches() -> None:
    late = setup(layout=FSDP, reduces_last=True, micro_batches=2)
    (term,) = sharding.block_reduction_terms(late, GROUPS, K)
    assert (term.name, term.source) == ("whole gradients", sharding.FSDP2)
    assert term.bytes == pytest.approx(4 * GROUPS.block * 4)
    for changes in ({"micro_batches": 1}, {"reduces_last": False}):
        (term,) = sharding.block_reduction_terms(late._replace(**changes), GROUPS, K)
        assert term.name == "gradient of a block and its reduction"


def test_an_adapter_without_parameters_reduces_nothing() -> None:
    empty = setup(layout=FSDP, adapter=LORA._replace(parameters=0))
    assert sharding.block_reduction_terms(empty, GROUPS, K) == ()
    one = setup(layout=FSDP, adapter=LORA._replace(parameters=1))
    assert only(sharding.block_reduction_terms(one, GROUPS, K)) == pytest.approx(12.5 / 4)


def test_the_head_has_a_gradient_where_it_is_trained() -> None:
    sharded = setup(layout=FSDP._replace(tensor=2))
    assert only(sharding.root_gradient_terms(sharded, GROUPS, K)) == 4.5 * 800 / 2
    assert sharding.root_gradient_terms(sharded._replace(adapter=LORA), GROUPS, K) == ()


def test_a_loader_leaves_a_whole_model_beside_the_shards() -> None:
    numerics = Numerics(weight=4, base=2)
    sharded = setup(layout=FSDP, numerics=numerics)
    assert only(sharding.load_copy_terms(sharded, GROUPS, K)) == 0.75 * 5000 * 4
    assert only(sharding.load_copy_terms(sharded._replace(adapter=LORA), GROUPS, K)) == 0.75 * 5000 * 2
    assert sharding.load_copy_terms(sharded, GROUPS, K._replace(whole_copy=0.0)) == ()
    assert sharding.load_copy_terms(setup(numerics=numerics), GROUPS, K) == ()


@pytest.mark.parametrize(
    ("kind", "buckets"),
    [("none", 0), ("ddp", 0), ("fsdp", 0), ("device_map", 0), ("zero1", 1), ("zero2", 1), ("zero3", 1)],
)
def test_zero_has_flat_buckets(kind: str, buckets: int) -> None:
    asked = setup(layout=ModelLayout(kind, shards=2))  # type: ignore[arg-type]
    assert [term.bytes for term in sharding.bucket_terms(asked, K)] == [1234.0] * buckets
    assert sharding.bucket_terms(asked, K._replace(bucket_bytes=0.0)) == ()


# --- adapters --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "targets", "a_rank"),
    [
        (DENSE, ["q_proj"], 4 * 28),
        (DENSE, ["k_proj"], 4 * 13),
        (DENSE, ["v"], 4 * 13),
        (DENSE, ["O_PROJ"], 4 * 28),
        (DENSE, ["Output_Proj"], 4 * 28),
        (DENSE, ["gate_proj"], 4 * 38),
        (DENSE, ["mlp"], 4 * 3 * 38),
        (DENSE, ["experts"], 0),
        (DENSE, ["unknown"], 0),
        (DENSE, ["all"], 4 * (28 + 13 + 13 + 28 + 3 * 38)),
        (DENSE._replace(gated_mlp=False), ["mlp"], 4 * 2 * 38),
        (DENSE._replace(gated_mlp=False), ["gate_proj"], 4 * 38),
        (DENSE._replace(gated_mlp=False), ["q_proj"], 4 * 28),
        (DENSE._replace(dense_layers=2), ["mlp"], 4 * 3 * 38),
        (MIXTURE, ["all"], 4 * (28 + 13 + 13 + 28) + 3 * 38 + 3 * 3 * (8 + 10) + 3 * 3 * 3 * (8 + 6)),
        (MIXTURE, ["q_proj"], 4 * 28),
        (MIXTURE, ["up_proj"], 1 * 38 + 3 * (8 + 10)),
        (MIXTURE, ["mlp"], 3 * 38 + 3 * 3 * (8 + 10)),
        (MIXTURE._replace(shared_expert_mlp_size=0), ["mlp"], 3 * 38),
        (MIXTURE._replace(shared_expert_mlp_size=1), ["mlp"], 3 * 38 + 3 * 3 * 9),
        (MIXTURE, ["experts"], 3 * 3 * 3 * (8 + 6)),
        (MIXTURE._replace(dense_layers=4), ["experts"], 0),
        (MIXTURE._replace(dense_layers=4), ["mlp"], 4 * 3 * 38),
    ],
)
def test_lora_adds_two_narrow_matrices_beside_each_adapted_one(
    shape: ModelShape, targets: list[str], a_rank: int
) -> None:
    assert sharding.lora_parameters(shape, 8, targets) == 8 * a_rank


@pytest.mark.parametrize(
    ("targets", "outputs"),
    [
        (["all"], 20 + 5 + 5 + 8 + 30 + 30 + 8),
        (["q"], 20),
        (["K_PROJ"], 5),
        (["v_proj"], 5),
        (["Output_Proj"], 8),
        (["gate_proj"], 30),
        (["w3"], 30),
        (["down_proj", "unknown"], 8),
    ],
)
def test_dora_scales_the_outputs_of_the_adapted_matrices(targets: list[str], outputs: int) -> None:
    assert sharding.adapted_outputs(DENSE, targets) == outputs


def test_lora_adapts_every_linear_layer_by_default() -> None:
    assert sharding.lora_parameters(MIXTURE, 8) == sharding.lora_parameters(MIXTURE, 8, ["all-linear"])


def test_a_quantised_base_keeps_its_ends_whole() -> None:
    assert sharding.quantized_bytes(DENSE, "int8") == (5000 - 1600) * 8.16 / 8 + 1600 * 2
    assert sharding.quantized_bytes(DENSE._replace(tie_embeddings=True), "nf4", 4.0) == 4200 * 4.5 / 8 + 800 * 4


# --- states, gradients and the update --------------------------------------------------------------

NUMERICS = Numerics(weight=4, base=2, compute=2, gradient=3, reduce=4, state=8, master=0, quantized_ends=5)
PARTS = ModelLayout("fsdp", shards=2, tensor=3, pipeline=4)


def by_name(setup: TrainSetup, phase: str, *names: str) -> list[float | None]:
    """The bytes of these terms in a phase; None for a term that it does not have."""
    found = {term.name: term.bytes for one in training.phases(setup, K) if one.name == phase for term in one.terms}
    return [found.get(name) for name in names]


def states(**changes: Any) -> list[float | None]:
    asked = setup(**{"numerics": NUMERICS, **changes})
    names = ("parameters", "optimizer states", "master weights", "gradients")
    return by_name(asked, "update", *names)


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, [20000, 40000, None, 15000]),
        ({"numerics": NUMERICS._replace(master=4)}, [20000, 40000, 20000, 15000]),
        (
            {"numerics": NUMERICS._replace(master=4), "layout": ModelLayout("zero2", shards=2)},
            [20000, 20000, 10000, 7500],
        ),
        ({"layout": PARTS}, [20000 / 24, 40000 / 24, None, 15000 / 24]),
        ({"layout": PARTS._replace(sharding="zero3")}, [20000 / 24, 40000 / 24, None, 15000 / 24]),
        ({"layout": PARTS._replace(sharding="device_map")}, [20000 / 24, 40000 / 24, None, 15000 / 24]),
        ({"layout": PARTS._replace(sharding="ddp", shards=1)}, [20000 / 12, 40000 / 12, None, 15000 / 12]),
        ({"layout": PARTS._replace(sharding="zero1")}, [20000 / 12, 40000 / 24, None, 15000 / 12]),
        ({"layout": PARTS._replace(sharding="zero2")}, [20000 / 12, 40000 / 24, None, 15000 / 24]),
        ({"offload": Offload(optimizer=True)}, [20000, None, None, 15000]),
        ({"offload": Offload(parameters=True)}, [None, None, None, None]),
        ({"optimizer_in_backward": True}, [20000, 40000, None, None]),
        ({"adapter": LORA._replace(slots=3)}, [None, 240 * 8, None, 3 * 240 * 3]),
        (
            {"adapter": LORA._replace(slots=3), "numerics": NUMERICS._replace(master=4), "layout": PARTS},
            [None, 240 * 8 / 24, 240 * 4 / 24, 3 * 240 * 3 / 24],
        ),
    ],
)
def test_states_are_split_as_their_sharding_splits_them(changes: dict[str, Any], sizes: list[float | None]) -> None:
    assert states(**changes) == [size if size is None else pytest.approx(size) for size in sizes]


@pytest.mark.parametrize(
    ("changes", "base", "weights", "ends"),
    [
        ({}, 10000, 3 * 240 * 4, None),
        ({"layout": PARTS}, 10000 / 24, 3 * 240 * 4 / 24, None),
        ({"quantization": "int8"}, 3400 * 8.16 / 8 + 1600 * 5, 3 * 240 * 4, None),
        ({"quantization": "int8", "layout": PARTS}, (3400 * 8.16 / 8 + 1600 * 5) / 24, 3 * 240 * 4 / 24, None),
        ({"quantization": "float8"}, 10000, 3 * 240 * 4, None),
        ({"offload": Offload(parameters=True)}, None, 3 * 240 * 4, None),
        ({"adapter": LORA._replace(slots=3, trains_embeddings=True)}, 10000, 3 * 240 * 4, 1600 * 12),
        (
            {"adapter": LORA._replace(slots=3, trains_embeddings=True), "layout": PARTS},
            10000 / 24,
            3 * 240 * 4 / 24,
            1600 * 12 / 24,
        ),
    ],
)
def test_an_adapter_stands_beside_a_frozen_base(
    changes: dict[str, Any], base: float | None, weights: float, ends: float | None
) -> None:
    asked = setup(**{"numerics": NUMERICS, "adapter": LORA._replace(slots=3), **changes})
    found = by_name(asked, "head", "frozen base", "adapter parameters", "trained embeddings")
    assert found == [size if size is None else pytest.approx(size) for size in (base, weights, ends)]


def temporaries(**changes: Any) -> float | None:
    return by_name(setup(**changes), "update", "optimizer temporaries")[0]


GIANT = DENSE._replace(parameters=10**10)


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, 5000 * 6),
        ({"layout": FSDP}, 2500 * 6),
        ({"layout": ModelLayout("zero1", shards=2)}, 2500 * 6),
        ({"layout": ModelLayout("ddp", replicas=2)}, 5000 * 6),
        ({"adapter": LORA._replace(slots=3)}, 240 * 6),
        ({"fused_optimizer": True}, None),
        ({"optimizer": "adamw-8bit"}, None),
        ({"optimizer": "muon"}, 5000 * 6),
        ({"optimizer_in_backward": True}, None),
        ({"offload": Offload(parameters=True)}, None),
        ({"offload": Offload(optimizer=True)}, None),
        ({"offload": Offload(optimizer=True), "program": "prime-rl"}, 5000 * 6),
        ({"offload": Offload(parameters=True), "program": "prime-rl"}, None),
        ({"layout": ModelLayout("zero3", shards=2)}, 2500 * 6),
        ({"layout": ModelLayout("zero3", shards=2), "numerics": Numerics(master=4)}, 2500 * (6 + 4)),
        ({"layout": ModelLayout("fsdp", shards=2), "numerics": Numerics(master=4)}, 2500 * 6),
    ],
)
def test_an_update_copies_what_it_updates(changes: dict[str, Any], size: float | None) -> None:
    assert temporaries(**changes) == size


@pytest.mark.parametrize(("shards", "numbers"), [(1, 1e9), (5, 1e9), (10, 1e9), (20, 5e8)])
def test_zero3_updates_at_most_a_sub_group_at_a_time(shards: int, numbers: float) -> None:
    assert training.ZERO3_SUBGROUP == 1e9
    assert temporaries(shape=GIANT, layout=ModelLayout("zero3", shards=shards)) == numbers * 6
    assert temporaries(shape=GIANT, layout=ModelLayout("fsdp", shards=shards)) == 10**10 / shards * 6


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"program": "prime-rl", "offload": Offload(optimizer=True)}, 40000),
        ({"program": "prime-rl", "offload": Offload(optimizer=True), "layout": PARTS}, 40000 / 24),
        ({"program": "prime-rl", "offload": Offload(optimizer=True), "adapter": LORA}, 240 * 8),
        ({"program": "prime-rl"}, None),
        ({"program": "prime-rl", "offload": Offload(optimizer=True, parameters=True)}, None),
        ({"offload": Offload(optimizer=True)}, None),
    ],
)
def test_prime_rl_copies_offloaded_states_back_for_the_update(changes: dict[str, Any], size: float | None) -> None:
    (found,) = by_name(setup(**changes), "update", "returned optimizer states")
    assert found == (size if size is None else pytest.approx(size))


# --- phases ----------------------------------------------------------------------------------------


def names_of(asked: TrainSetup) -> dict[str, set[str]]:
    return {phase.name: {term.name for term in phase.terms} for phase in training.phases(asked, K)}


LENGTHS = {"saved residuals", "recomputed block", "hidden states of the head", "logits and loss"}
STATES = {"parameters", "optimizer states", "whole model at load"}
GATHERED = {"embedding and head gather", "block gather", "gradient of a block and its reduction"}
BLOCKS = {"gradients of a block's activations", "gathered residual stream", *GATHERED, "gradient of the head"}


def test_each_phase_holds_what_is_alive_in_it() -> None:
    ends = {"hidden states of the head", "logits and loss", "gradient of the head", "gathered residual stream"}
    assert names_of(setup(layout=FSDP._replace(tensor=2))) == {
        "head": STATES | ends | {"saved activations", "embedding and head gather"},
        "first block": STATES | BLOCKS | {"saved activations"},
        "last block": STATES | BLOCKS | {"saved activations", "gradients"},
        "embedding": STATES | {"gradients"},
        "update": STATES | {"gradients", "optimizer temporaries"},
    }


def test_ends_that_are_gathered_apart_are_gone_in_the_backward_of_the_blocks() -> None:
    together, apart = (names_of(setup(layout=FSDP._replace(ends_apart=ends))) for ends in (False, True))
    gone = {"embedding and head gather", "gradient of the head"}
    assert apart["head"] == together["head"] >= gone
    for phase in ("first block", "last block"):
        assert together[phase] - apart[phase] == gone


@pytest.mark.parametrize(
    ("changes", "early"),
    [
        ({}, False),
        ({"micro_batches": 2}, True),
        ({"layout": ModelLayout("ddp", replicas=2)}, True),
        ({"layout": ModelLayout("zero1", shards=2)}, False),
    ],
)
def test_gradients_exist_from_the_start_of_a_second_micro_batch(changes: dict[str, Any], early: bool) -> None:
    found = names_of(setup(**changes))
    assert [phase for phase, names in found.items() if "gradients" in names] == [
        *(("head", "first block") if early else ()),
        "last block",
        "embedding",
        "update",
    ]


def test_the_phases_of_the_bundled_trainer_hold_its_own_terms() -> None:
    own = setup(program="bundled", packed=True, numerics=Numerics(autocast=True), micro_batches=2)
    found = names_of(own)
    assert {"cast weights", "input of the last norm"} <= found["head"]
    assert {"cast weights", "gradient of the head"} <= found["first block"]
    assert "cast weights" in found["last block"]
    assert "gradients of the embedding" in found["embedding"]
    (late,) = by_name(own._replace(shape=DENSE._replace(tie_embeddings=True), micro_batches=1), "embedding",
                      "gradients of the embedding")  # fmt: skip
    assert late == 2 * 4 * 800


@pytest.mark.parametrize(
    ("compute", "ctx_tokens", "term"),
    [
        (2.0, 256, None),
        (2.0, 512, None),
        (4.0, 511, ("attention masks", 4 * TOKENS * 511)),
        (4.0, 512, ("joined attention outputs", 4 * TOKENS * DENSE.heads * DENSE.head_dim)),
    ],
)
def test_packed_documents_cost_memory_in_fp32_alone(
    compute: float, ctx_tokens: int, term: tuple[str, float] | None
) -> None:
    """FlashAttention, which has no fp32, keeps what it keeps of one document."""
    numerics = Numerics(compute=compute, autocast=compute == 2)
    own = setup(program="bundled", packed=True, numerics=numerics, ctx_tokens=ctx_tokens)
    others = names_of(own._replace(packed=False))
    more = {phase: names - others[phase] for phase, names in names_of(own).items()}
    in_layers = {"head": DENSE.layers, "first block": DENSE.layers, "last block": 1}
    assert {phase for phase, names in more.items() if names} == (set(in_layers) if term else set())
    if term is not None:
        name, each = term
        assert [by_name(own, phase, name) for phase in in_layers] == [[count * each] for count in in_layers.values()]


def test_the_first_stage_of_a_pipeline_keeps_several_micro_batches() -> None:
    staged = setup(layout=ModelLayout(pipeline=2, in_flight=3))
    kept = 2 * TOKENS * 2 * KEPT
    sizes = [by_name(staged, phase, "saved activations")[0] for phase in ("head", "first block", "last block")]
    assert sizes == [kept, 3 * kept, kept / 2]


def test_a_stage_of_less_than_a_layer_keeps_its_part() -> None:
    deep = setup(layout=ModelLayout(pipeline=8))
    assert by_name(deep, "last block", "saved activations") == [0.5 * TOKENS * 2 * KEPT]


def test_every_term_has_a_name_a_formula_and_a_source() -> None:
    kinds: tuple[HeadKind, ...] = ("in_place", "full", "vocab_chunked", "token_chunked", "tiled")
    heads = [Head(kind, 4, 4) for kind in kinds]
    lora = LORA._replace(trains_embeddings=True)
    asked = [
        setup(layout=FSDP._replace(tensor=2), head=heads[0], numerics=Numerics(master=4)),
        setup(layout=ModelLayout("zero3", shards=2, pipeline=2), head=heads[1], adapter=lora),
        setup(head=heads[2], adapter=lora, quantization="nf4", offload=Offload(activations=True)),
        setup(head=heads[3], checkpointing="full", offload=Offload(optimizer=True), program="prime-rl"),
        setup(head=heads[4]),
    ]
    for one in asked:
        for phase in (*training.phases(one, K), training.peak_of(one, K)):
            for term in phase.terms:
                assert all(isinstance(text, str) and text for text in (term.name, term.formula, term.source)), term
        memory = training.training_memory(one, EIGHT_GPUS)
        assert all(term.name and term.formula and term.source for term in (*memory.terms, *memory.outside))


# --- reserve, interval and what is outside ---------------------------------------------------------


def test_the_allocator_reserves_more_of_what_comes_and_goes() -> None:
    terms = [Term("parameters", 1000.0, "", ""), Term("goes", 300.0, "", ""), Term("comes", 200.0, "", "")]
    found = training.reserve_term(terms, K)
    assert found.name == "allocator reserve"
    assert found.bytes == pytest.approx(0.08 * 500 + 0.02 * 1000 + 100)


def test_lengths_that_differ_leave_segments_of_activations_and_logits_alone() -> None:
    asked = setup(checkpointing="full", layout=FSDP, micro_batches=2)
    for phase in training.phases(asked, K):
        of_length = [term.bytes for term in phase.terms if term.name in LENGTHS]
        plain = training.reserve_term(phase.terms, K).bytes
        varied = training.reserve_term(phase.terms, K._replace(reserve_lengths=0.5))
        assert varied.bytes - plain == pytest.approx(0.5 * sum(of_length))
        assert "left by shorter micro-batches" in varied.formula


@pytest.mark.parametrize(
    ("room_bytes", "left"),
    [
        (0.0, 500.0),
        (1600, 500.0),
        (1500, 500.0),
        (1499, 499.0),
        (1000.5, 0.5),
        (999, 0.0),
        (1.0, 0.0),
    ],
)
def test_the_reserve_is_cut_to_what_the_tensors_leave(room_bytes: float, left: float) -> None:
    reserve = Term("allocator reserve", 500.0, "fitted", "")
    found = training.trim_reserve(reserve, 1000.0, room_bytes)
    assert found.bytes == pytest.approx(left)
    assert (found == reserve) == (left == 500.0)
    assert found.formula.startswith("fitted")


def test_the_peak_is_the_highest_phase_with_its_reserve() -> None:
    for one in (setup(), setup(tokens=10**6), setup(head=Head("tiled"), checkpointing="full"), setup(shape=GIANT)):
        peak = training.peak_of(one, K)
        plain = {phase.name: phase for phase in training.phases(one, K)}
        *tensors, reserve = peak.terms
        assert tuple(tensors) == plain[peak.name].terms
        assert reserve == training.reserve_term(tensors, K)
        assert all(peak.bytes >= phase.bytes + training.reserve_term(phase.terms, K).bytes for phase in plain.values())
    assert training.peak_of(setup(tokens=10**6), K).name == "head"
    assert training.peak_of(setup(shape=GIANT), K).name == "update"


def test_memory_outside_the_allocator_is_a_context_and_for_several_gpus_nccl() -> None:
    (context,) = training.outside_terms(setup())
    assert context.bytes == 0.55 * GIB
    both = training.outside_terms(setup(layout=FSDP))
    assert [(term.name, term.bytes) for term in both] == [("CUDA context", 0.55 * GIB), ("NCCL", 0.6 * GIB)]


@pytest.mark.parametrize(
    ("typical", "interval"),
    [(1000.0, (900, 1000, 1120)), (850.0, (850, 850, 1120)), (1200.0, (900, 1200, 1200))],
)
def test_the_interval_is_around_the_estimate_of_an_unlimited_gpu(typical: float, interval: tuple[float, ...]) -> None:
    assert training.interval_around(typical, 1000.0, (0.9, 1.12)) == pytest.approx(interval)


ENTRY = Fitted(
    Coefficients(),
    "test",
    models=("dense",),
    intervals={"any": (0.9, 1.1), "cached": (0.9, 1.4)},
    programs=("known",),
    features=features_of(setup(DENSE)),
    most_tokens=setup(DENSE).tokens,
    most_vocab=DENSE.vocab_size,
)
LIKE = setup(DENSE._replace(name="Org/Dense-7B-x"), program="known")


def test_a_run_like_a_measured_one_has_the_interval_of_the_rows() -> None:
    assert ENTRY.unlike(LIKE) == ()
    assert training.factors_of(LIKE, ENTRY, "full") == (0.9, 1.1)
    other_family = LIKE._replace(shape=DENSE._replace(name="Org/Sparse-7B"))
    assert training.factors_of(other_family, ENTRY, "full") == pytest.approx((0.875, 1.125))
    compiled = other_family._replace(compiled=not LIKE.compiled)
    assert training.factors_of(compiled, ENTRY, "full") == pytest.approx((1 - 0.1 * 1.25**2, 1 + 0.1 * 1.25**2))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"program": "nobody"}, "of nobody"),
        ({"checkpointing": "selective"}, "selective checkpointing"),
        ({"head": Head("fused")}, "a head of kind fused"),
        ({"layout": ModelLayout("fsdp", shards=2, context=2)}, "context parallelism"),
        ({"adapter": AdapterSize("lora", 8, 1000)}, "adapter training"),
        ({"offload": Offload(optimizer=True)}, "the optimizer on the host"),
        ({"tokens": LIKE.tokens + 1}, "tokens at once"),
        ({"shape": LIKE.shape._replace(vocab_size=DENSE.vocab_size + 1)}, "a vocabulary of more than"),
    ],
)
def test_what_no_measured_run_had_makes_the_bound_half_as_high_again_and_no_answer_certain(
    changes: dict[str, Any], named: str
) -> None:
    asked = LIKE._replace(**changes)
    memory = training.training_memory(asked, EIGHT_GPUS, ENTRY)
    assert any(named in text for text in memory.unlike)
    assert memory.reserved.high >= 1.5 * memory.reserved.typical
    assert memory.reserved.low <= memory.reserved.typical / 1.5
    for room in (0.0, memory.need.low / 10, memory.need.typical, memory.need.high * 100):
        assert 0.05 <= judge_role(memory, room).probability <= 0.95


@pytest.mark.parametrize("program", ["nobody", "trl", "axolotl", "llama-factory", "unsloth", "nanochat", "llm.c"])
def test_a_program_without_rows_has_the_wider_interval(program: str) -> None:
    memory = training.training_memory(setup(DENSE, program=program), EIGHT_GPUS)
    assert memory.unlike
    assert memory.need.high >= 1.5 * memory.need.typical - 1.0 * memory.outside_bytes


def test_short_lived_tensors_leave_segments_that_are_reserved_and_not_allocated() -> None:
    entry = ENTRY._replace(coefficients=Coefficients(cached=0.5), allocated=True)
    memory = training.training_memory(LIKE, EIGHT_GPUS._replace(usable_bytes=0.0), entry)
    assert memory.allocated is not None
    (cached,) = (term for term in memory.terms if term.name == training.CACHED)
    assert cached.bytes > 0
    assert memory.reserved.typical == pytest.approx(memory.allocated.typical + cached.bytes)
    assert memory.need.typical == pytest.approx(memory.allocated.typical + memory.outside_bytes)
    assert memory.shown.typical == pytest.approx(memory.reserved.typical + memory.outside_bytes)
    full = EIGHT_GPUS._replace(usable_bytes=memory.need.typical + 1.0)
    assert training.training_memory(LIKE, full, entry).terms[-1].bytes == pytest.approx(1.0)


def test_the_estimate_names_the_trainer_its_gpus_and_its_highest_phase() -> None:
    asked = setup(shape=GIANT, layout=ModelLayout("fsdp", shards=2, replicas=2))
    memory = training.training_memory(asked, EIGHT_GPUS._replace(usable_bytes=0.0))
    k = fitted_entry("hf", "").coefficients
    peak = training.peak_of(asked, k)
    assert (memory.role, memory.gpus, memory.phase, memory.terms[:-1]) == ("trainer", 4, peak.name, peak.terms)
    assert memory.allocated is not None
    assert memory.allocated.typical == pytest.approx(peak.bytes)
    assert memory.outside == training.outside_terms(asked)


def test_a_full_gpu_cuts_the_reserve_of_the_estimate() -> None:
    asked = setup(shape=GIANT)
    free = training.training_memory(asked, EIGHT_GPUS._replace(usable_bytes=0.0))
    usable_bytes = training.CUDA_CONTEXT_BYTES + free.reserved.typical - 1
    cut = training.training_memory(asked, EIGHT_GPUS._replace(usable_bytes=usable_bytes))
    assert cut.terms[:-1] == free.terms[:-1]
    assert cut.terms[-1].bytes == pytest.approx(free.terms[-1].bytes - 1)
    assert cut.reserved.typical == pytest.approx(free.reserved.typical - 1, rel=1e-15)
