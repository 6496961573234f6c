"""What a recipe does not set follows from its program and version; heads, optimizers and objectives change memory."""

from __future__ import annotations

import pytest

from prime_train.config.recipe import OPTIMIZERS
from prime_train.estimate.estimate import estimate
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.memory.assumed import assumed_by
from prime_train.estimate.memory.coefficients import fitted_entry
from prime_train.estimate.memory.host import host_memory
from prime_train.estimate.memory.setup_from_recipe import program_table, setup_of_recipe, with_defaults
from prime_train.estimate.memory.train_setup import Head, Offload, TrainSetup
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.model.shape import ModelShape, shape_from_registry
from prime_train.estimate.verdict import Chance, MemoryVerdict, judge_role
from prime_train.registry.gpus import read_table
from prime_train.spec import Data, Run, RunSpec
from prime_train.spec.prime_rl_parts import Recipe

A100 = hardware_from_name("a100-80gb")


def model(name: str = "meta-llama/Meta-Llama-3-8B") -> ModelShape:
    found = shape_from_registry(name)
    assert found is not None
    return found


GPT2 = ModelShape(
    name="openai-community/gpt2",
    vocab_size=50304,
    hidden_size=768,
    layers=12,
    heads=12,
    kv_heads=12,
    head_dim=64,
    mlp_size=3072,
    parameters=124_475_904,
    tie_embeddings=True,
    gated_mlp=False,
    source="openai-community/gpt2 config.json, vocabulary padded by llm.c",
)
# nanochat d24: 24 layers of width 64 x 24, no MLP gate, separate embedding and head; value embeddings not counted
NANO = GPT2._replace(
    name="karpathy/nanochat-d24",
    vocab_size=32768,
    hidden_size=1536,
    layers=24,
    kv_heads=12,
    head_dim=128,
    mlp_size=6144,
    parameters=780_000_000,
    tie_embeddings=False,
)


def setup(recipe: Recipe, shape: ModelShape | None = None, gpus: str = "a100-80gb") -> TrainSetup:
    return setup_of_recipe(recipe, hardware_from_name(gpus), shape or model())


def peak_gib(recipe: Recipe, shape: ModelShape | None = None, gpus: str = "a100-80gb") -> float:
    """Of allocated memory."""
    hardware = hardware_from_name(gpus)
    memory = training_memory(setup(recipe, shape, gpus), hardware)
    return (memory.allocated or memory.reserved).typical / 2**30


LORA = Recipe(
    program="hf",
    adapter="lora",
    adapter_rank=16,
    adapter_targets=("q_proj", "k_proj", "v_proj", "o_proj"),
    ctx_tokens=4096,
    micro_batch=4,
    activation_checkpointing="full",
)


@pytest.mark.parametrize(
    ("recipe", "gpus", "measured_bytes"),
    [
        (LORA._replace(head="liger"), "1xa100-80gb", 24905936896),
        (
            LORA._replace(head="liger", quantization="nf4-dq", micro_batch=16, weight_dtype="bf16"),
            "1xa100-80gb",
            39987639296,
        ),
        (LORA._replace(head="fused-loss"), "1xa100-80gb", 37644015616),
        (LORA._replace(head="liger", micro_batch=8, sharding="fsdp", gpus=4), "4xa100-80gb", 32003797504),
        (LORA._replace(adapter="none", head="liger", micro_batch=8), "1xa100-80gb", 80318490624),
    ],
)
def test_published_runs_with_kernels_that_keep_no_logits(recipe: Recipe, gpus: str, measured_bytes: int) -> None:
    """fms-acceleration, scripts/benchmarks/refs/a100_80gb_liger.csv: Llama-3-8B, peak of allocated memory."""
    assert peak_gib(recipe, gpus=gpus) == pytest.approx(measured_bytes / 2**30, rel=0.15)


@pytest.mark.parametrize(
    ("changes", "measured_bytes"),
    [
        ({"adapter": "lora", "adapter_rank": 32}, 22273851392),
        ({"adapter": "dora", "adapter_rank": 32}, 24540872704),
        ({"adapter": "none"}, 37241225216),
    ],
)
def test_published_runs_of_peft(changes: dict[str, object], measured_bytes: int) -> None:
    """peft, method_comparison/MetaMathQA/results: Llama-3.2-3B, 4 x 768 tokens, no checkpointing, an emptied cache."""
    recipe = Recipe(program="peft", ctx_tokens=768, micro_batch=4)._replace(**changes)  # type: ignore[arg-type]
    measured = measured_bytes / 2**30
    assert peak_gib(recipe, model("meta-llama/Llama-3.2-3B"), "l40s") == pytest.approx(measured, rel=0.12)


def test_dora_keeps_more_than_lora_and_trains_a_magnitude_for_each_output() -> None:
    lora, dora = setup(LORA), setup(LORA._replace(adapter="dora"))
    assert lora.adapter is not None
    assert dora.adapter is not None
    assert dora.adapter.parameters - lora.adapter.parameters == model().layers * (4096 + 1024 + 1024 + 4096)
    kept = LORA._replace(activation_checkpointing="none")
    assert peak_gib(kept._replace(adapter="dora")) > peak_gib(kept) + 1


def test_liger_computes_as_many_rows_as_make_the_logits_as_large_as_the_hidden_states() -> None:
    assert setup(LORA._replace(head="liger")).head == Head("fused", chunk_tokens=512)
    assert setup(LORA._replace(head="cce")).head == Head("fused", chunk_tokens=0)


def test_each_head_needs_less_than_the_one_before() -> None:
    peaks = [peak_gib(LORA._replace(head=head)) for head in ("full", "fused-loss", "liger")]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 3


@pytest.mark.parametrize("head", ["full", "fused-loss", "token-chunked", "vocab-chunked", "liger", "cce", "in-place"])
def test_each_head_has_a_time_too(head: str) -> None:
    run = RunSpec(
        run=Run(name="x", max_steps=10), data=Data(sources=()), recipe=LORA._replace(head=head), format="recipe"
    )
    time = estimate(run, A100, model()).time
    assert time is not None
    assert time.step_s.typical > 0


def test_optimizers_have_the_moments_they_keep() -> None:
    full = Recipe(program="hf", ctx_tokens=512)
    state = {name: setup(full._replace(optimizer=name)).numerics.state for name in OPTIMIZERS}
    assert state["adamw"] == 4.0
    assert state["adamw-8bit"] == pytest.approx(2 * (1 + 4 / 256))
    assert state["lion"] == 2.0
    assert state["sgd"] == state["adafactor"] == 0.0
    ends = 2 * 128256 * 4096 / model().parameters
    assert state["muon"] == pytest.approx(2.0 * (1 + ends))
    assert setup(full._replace(optimizer="paged-adamw-8bit")).offload.optimizer
    assert not setup(full._replace(optimizer="adamw-8bit")).offload.optimizer


def test_dpo_has_two_answers_and_a_frozen_copy_unless_an_adapter_is_trained() -> None:
    plain = Recipe(program="trl", ctx_tokens=1024, micro_batch=2)
    dpo = setup(plain._replace(objective="dpo"))
    assert dpo.tokens == 2 * setup(plain).tokens
    assert [(term.name, term.bytes) for term in dpo.beside] == [("reference model", 2.0 * model().parameters)]
    assert setup(LORA._replace(objective="dpo")).beside == ()
    assert setup(plain._replace(objective="dpo", reference_model=False)).beside == ()


def test_grpo_counts_the_engine_beside_the_trainer() -> None:
    grpo = Recipe(program="trl", objective="grpo", ctx_tokens=1024, engine_memory_fraction=0.3)
    (engine,) = setup(grpo).beside
    assert (engine.name, engine.bytes) == ("engine's memory", 0.3 * A100.usable_bytes)
    assert len(setup(grpo._replace(reference_model=True)).beside) == 2


def test_the_version_of_a_program_decides_its_usual_head() -> None:
    assert with_defaults(Recipe(program="torchtune", version="0.3.1")).head is None
    assert with_defaults(Recipe(program="torchtune", version="0.4.0")).head == "token-chunked"
    assert with_defaults(Recipe(program="torchtune")).head == "token-chunked"
    assert with_defaults(Recipe(program="unsloth", version="2024-11")).head is None
    assert with_defaults(Recipe(program="unsloth", version="2024-12")).head == "cce"
    assert with_defaults(Recipe(program="unsloth", version="2025.9.1")).head == "cce"
    assert with_defaults(Recipe(program="unsloth", head="full")).head == "full"
    assert with_defaults(Recipe(program="nobody-knows")) == Recipe(program="nobody-knows")


def test_programs_have_the_layout_and_the_numbers_of_their_scripts() -> None:
    assert setup(Recipe(program="verl", gpus=8), gpus="8xa100-80gb").layout.sharding == "fsdp"
    assert setup(Recipe(program="verl", gpus=8), gpus="8xa100-80gb").numerics.weight == 4.0
    assert setup(Recipe(program="openrlhf", gpus=8), gpus="8xa100-80gb").numerics.master == 4.0
    assert setup(Recipe(program="openrlhf", gpus=8), gpus="8xa100-80gb").layout.sharding == "zero2"


def test_programs_train_in_the_types_and_with_the_checkpointing_of_their_scripts() -> None:
    trl = setup(Recipe(program="trl"))
    assert (trl.numerics.weight, trl.checkpointing, trl.head.kind) == (4.0, "full", "token_chunked")
    assert setup(Recipe(program="trl", version="0.21")).checkpointing == "none"
    assert setup(Recipe(program="trl", objective="dpo")).head.kind == "full"
    lora = setup(Recipe(program="trl", adapter="lora")).numerics
    assert (lora.weight, lora.base) == (4.0, 4.0)
    assert setup(Recipe(program="trl", adapter="lora", base_dtype="bf16")).numerics.base == 2.0
    factory = setup(Recipe(program="llama-factory"))
    assert (factory.numerics.weight, factory.checkpointing) == (4.0, "full")
    assert setup(Recipe(program="llama-factory", sharding="zero3", gpus=8)).numerics.master == 4.0
    assert setup(Recipe(program="torchtitan")).checkpointing == "selective"
    assert setup(Recipe(program="ms-swift")).checkpointing == "full"


def test_fsdp_on_accelerate_trains_fp32_weights_if_products_have_fewer_bits() -> None:
    sharded = Recipe(program="axolotl", sharding="fsdp", gpus=8)
    assert setup(sharded).numerics.weight == 4.0
    assert setup(sharded._replace(weight_dtype="bf16")).numerics.weight == 2.0
    assert setup(sharded._replace(compute_dtype="fp32")).numerics.weight == 2.0
    assert setup(sharded._replace(sharding="ddp")).numerics.weight == 2.0
    assert setup(sharded._replace(program="torchtune")).numerics.weight == 2.0


def test_megatron_keeps_18_bytes_a_parameter_and_shards_12_of_them() -> None:
    """Megatron-LM, docs of the distributed optimizer: bf16 weights with fp32 main gradients: 18, or 6 + 12 / d."""
    numerics = setup(Recipe(program="megatron-lm", gpus=8)).numerics
    assert (numerics.weight, numerics.gradient) == (2.0, 4.0)
    assert (numerics.master, numerics.state) == (4.0, 8.0)
    assert setup(Recipe(program="megatron-lm", gpus=8, sharding="zero1")).layout.state_parts == 8


def test_each_program_is_like_an_entry_with_coefficients() -> None:
    entries = read_table("memory.toml")
    for name, table in read_table("recipes.toml").items():
        assert table["like"] in entries, name
        assert table["source"], name
        assert all(version["since"] and version["source"] for version in table.get("version", ())), name
        assert fitted_entry(name, "").coefficients == fitted_entry(table["like"], "").coefficients
    assert program_table("nobody-knows") == program_table("hf")


@pytest.mark.parametrize(
    ("recipe", "shape", "gpus"),
    [
        # llm.c discussion 481: -b 64 -t 1024 on A100 80GB, ZeRO-1 over 8
        (Recipe(program="llm.c", sharding="zero1", gpus=8, ctx_tokens=1024, micro_batch=64), GPT2, "8xa100-80gb"),
        # nanochat runs/speedrun.sh: depth 24, 16 x 2048 tokens on H100 80GB
        (Recipe(program="nanochat", sharding="zero1", gpus=8, ctx_tokens=2048, micro_batch=16), NANO, "8xh100-80gb"),
    ],
)
def test_runs_that_ran_are_not_refused(recipe: Recipe, shape: ModelShape, gpus: str) -> None:
    run = RunSpec(run=Run(name="ran", max_steps=10), data=Data(sources=()), recipe=recipe, format="recipe")
    found = estimate(run, hardware_from_name(gpus), shape)
    assert found.chance.verdict is not MemoryVerdict.DOES_NOT_FIT


QLORA = Recipe(
    adapter="lora",
    adapter_rank=32,
    adapter_targets=("all",),
    quantization="nf4",
    micro_batch=1,
    activation_checkpointing="full",
)
# Longest context of an 8B QLoRA on cards of so many GiB, by unsloth.ai/docs/basics/unsloth-benchmarks, "Llama 3.1 (8B)
# max. context length": 4-bit QLoRA of rank 32 on all linear layers, a batch of one; the first is "Hugging Face + FA2".
LONGEST_HF = {16: 2551, 24: 5789, 40: 12264, 48: 15502, 80: 28454}
LONGEST_UNSLOTH = {12: 21848, 16: 40724, 24: 78475, 40: 153977, 48: 191728, 80: 342733}


def judged(recipe: Recipe, card_gib: int) -> Chance:
    hardware = A100._replace(usable_bytes=0.985 * card_gib * 2**30)
    shape = model("meta-llama/Llama-3.1-8B")
    return judge_role(training_memory(setup_of_recipe(recipe, hardware, shape), hardware), hardware.usable_bytes)


@pytest.mark.parametrize(
    ("program", "ends"), [("hf", 4.0), ("peft", 4.0), ("axolotl", 2.0), ("llama-factory", 2.0), ("ms-swift", 2.0)]
)
def test_embedding_and_head_of_a_quantised_base_are_cast_only_where_the_program_does(program: str, ends: float) -> None:
    found = setup_of_recipe(QLORA._replace(program=program), A100, model("meta-llama/Llama-3.1-8B"))
    assert found.numerics.quantized_ends == ends


def test_a_quantised_base_that_is_loaded_in_fp32_has_such_an_embedding() -> None:
    trl = QLORA._replace(program="trl", weight_dtype="bf16")
    shape = model("meta-llama/Llama-3.1-8B")
    assert setup_of_recipe(trl, A100, shape).numerics.quantized_ends == 4.0
    assert setup_of_recipe(trl._replace(base_dtype="bf16"), A100, shape).numerics.quantized_ends == 2.0


# axolotl and LLaMA-Factory keep embedding and head in 16 bits, so their sequences may be longer than the table has.
@pytest.mark.parametrize("program", ["hf", "trl", "peft"])
@pytest.mark.parametrize(("card_gib", "ctx_tokens"), LONGEST_HF.items())
def test_the_longest_context_of_a_quantised_base_is_where_it_was_measured(
    program: str, card_gib: int, ctx_tokens: int
) -> None:
    version = "0.12" if program == "trl" else None  # of the time of the table: a loss of all logits
    longest = QLORA._replace(program=program, version=version, ctx_tokens=ctx_tokens)
    assert judged(longest, card_gib).verdict is not MemoryVerdict.DOES_NOT_FIT
    too_long = judged(longest._replace(ctx_tokens=int(1.3 * ctx_tokens)), card_gib)
    assert too_long.verdict is MemoryVerdict.DOES_NOT_FIT
    assert judged(longest._replace(ctx_tokens=ctx_tokens // 8), card_gib).verdict is not MemoryVerdict.DOES_NOT_FIT


@pytest.mark.parametrize(("card_gib", "ctx_tokens"), LONGEST_UNSLOTH.items())
def test_unsloth_keeps_the_residual_stream_on_the_host(card_gib: int, ctx_tokens: int) -> None:
    longest = QLORA._replace(program="unsloth", ctx_tokens=ctx_tokens)
    assert setup(longest).offload.activations
    assert (
        judged(longest._replace(ctx_tokens=int(0.95 * ctx_tokens)), card_gib).verdict is not MemoryVerdict.DOES_NOT_FIT
    )
    assert judged(longest._replace(ctx_tokens=int(1.3 * ctx_tokens)), card_gib).verdict is MemoryVerdict.DOES_NOT_FIT


def test_embedding_and_head_beside_a_quantised_base_are_in_fp32_unless_16_bits_are_asked_for() -> None:
    upcast, kept = setup(QLORA), setup(QLORA._replace(weight_dtype="bf16"))
    assert (upcast.numerics.quantized_ends, upcast.has_fp32_head) == (4.0, True)
    assert (kept.numerics.quantized_ends, kept.has_fp32_head) == (2.0, False)
    assert not setup(QLORA._replace(program="unsloth")).has_fp32_head


def test_torchtitan_keeps_weights_and_moments_in_fp32() -> None:
    """pytorch/torchtitan, issue 1884: Llama-3-8B on four GPUs, two of them for a sequence: 44.84 GiB."""
    recipe = Recipe(
        program="torchtitan", gpus=4, sharding="fsdp", shards=4, context_parallel=2, ctx_tokens=8192, compile=False,
        activation_checkpointing="full",
    )  # fmt: skip
    numerics = setup(recipe).numerics
    assert (numerics.weight, numerics.compute, numerics.state) == (4.0, 2.0, 8.0)
    hardware = hardware_from_name("4xh100-nvl")
    memory = training_memory(setup_of_recipe(recipe, hardware, model()), hardware).reserved
    assert memory.typical / 2**30 == pytest.approx(44.84, rel=0.15)
    assert memory.low / 2**30 <= 44.84 <= memory.high / 2**30


def test_nanochat_keeps_no_gate_and_logits_in_16_bits() -> None:
    """karpathy/nanochat, issue 443: depth 20 with 32 sequences runs out of memory on 80 GB, or just does not."""
    shape = NANO._replace(vocab_size=65536, hidden_size=1280, layers=20, heads=10, kv_heads=10, mlp_size=5120,
                          parameters=560_988_160)  # fmt: skip
    peak = peak_gib(Recipe(program="nanochat", gpus=8, ctx_tokens=2048, micro_batch=32), shape, "8xh100-80gb")
    assert peak == pytest.approx(80.5, rel=0.15)


def test_litgpt_has_a_head_of_its_own_and_adapts_and_quantises_it() -> None:
    gemma = model("google/gemma-2b")
    plain = setup(Recipe(program="litgpt"), gemma)
    assert plain.shape.parameters == gemma.parameters + gemma.vocab_size * gemma.hidden_size
    lora = Recipe(program="litgpt", adapter="lora", adapter_rank=8, adapter_targets=("q_proj",))
    adapted, without = (setup(lora._replace(adapter_targets=names), gemma) for names in (("lm_head",), ("q_proj",)))
    assert adapted.adapter is not None
    assert adapted.adapter.parameters == 8 * (gemma.hidden_size + gemma.vocab_size)
    assert without.numerics.quantizes_head
    assert setup(lora._replace(version="0.1"), gemma).era < without.era


def test_an_optimizer_on_the_host_is_counted_there_and_not_on_the_gpu() -> None:
    recipe = Recipe(program="hf", gpus=8, sharding="zero2", optimizer_offload=True, activation_checkpointing="full")
    hardware = hardware_from_name("8xh200")
    found = setup_of_recipe(recipe, hardware, model("Qwen/Qwen3-30B-A3B"))
    names = {term.name for term in training_memory(found, hardware).terms}
    assert names.isdisjoint({"master weights", "optimizer states", "gradients"})
    host = host_memory(found, hardware)
    assert host is not None
    assert host.low == pytest.approx(16 * found.shape.parameters)
    assert host.high > 2 * host.low
    assert host_memory(found._replace(offload=Offload()), hardware) is None


def test_every_assumed_type_and_setting_is_named() -> None:
    recipe = Recipe(program="torchtitan", ctx_tokens=4096)
    types, settings = assumed_by(recipe, setup(recipe))
    assert "weights fp32" in types
    assert "products bf16" in types
    assert "recipe.weight_dtype" in types
    assert 'recipe.sharding = "none"' in settings
    assert "ctx_tokens" not in settings
    every = recipe._replace(weight_dtype="bf16", compute_dtype="bf16", optimizer_state_dtype="bf16")
    assert not any(line.startswith("types") for line in assumed_by(every, setup(every)))


def test_an_adapter_at_8k_with_gradients_and_moments_sharded_is_near_the_published_memory() -> None:
    """Llama 2 7B at 8,192 tokens on 8 A100 took 25.7 GB. Source: LongLoRA, arXiv 2309.12307, with ZeRO-2."""
    targets = ("q_proj", "k_proj", "v_proj", "o_proj")
    recipe = Recipe(
        program="hf",
        sharding="zero2",
        gpus=8,
        ctx_tokens=8192,
        micro_batch=1,
        adapter="lora",
        adapter_rank=8,
        adapter_targets=targets,
        activation_checkpointing="full",
    )
    eight = hardware_from_name("8xa100-80gb")
    shown = training_memory(setup_of_recipe(recipe, eight, model("meta-llama/Llama-2-7b-hf")), eight).shown
    assert shown.low <= 25.7e9 <= shown.high
    assert shown.typical == pytest.approx(25.7e9, rel=0.15)
