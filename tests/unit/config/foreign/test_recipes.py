"""A file of another program becomes a recipe; what its program takes, and what only the run knows, is listed."""

from __future__ import annotations

from typing import Any

import pytest
import tomli
import yaml
from hypothesis import given
from hypothesis import strategies as st

from prime_train.config.foreign.recipe.draft import PROGRAMS, RecipeDraft, to_recipe
from prime_train.config.foreign.recipe.fields import formats, mapping_of, read_fields, types, write_field
from prime_train.config.foreign.values import ForeignPart, Open, open_values
from prime_train.config.recipe import schema
from prime_train.config.schema import OneOf, Table
from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.memory.setup_from_recipe import setup_of_recipe
from prime_train.estimate.memory.train_setup import TrainSetup
from prime_train.estimate.model.shape import shape_from_registry
from prime_train.registry.gpus import read_table
from prime_train.spec.prime_rl_parts import Recipe
from prime_train.toml.document import Document

FORMATS = sorted(formats())


def part(format: str, text: str, **more: Any) -> ForeignPart:
    values = open_values(yaml.safe_load(text) or {}, exponents=True, references=True) | more
    return ForeignPart(format, values, Document(text, f"{format}.yaml", values))


def draft(format: str, text: str, *beside: ForeignPart, gpus: int | None = None, **more: Any) -> RecipeDraft:
    found = to_recipe((part(format, text, **more), *beside), gpus)
    assert found is not None
    return found


def recipe(format: str, text: str, *beside: ForeignPart, gpus: int | None = None, **more: Any) -> Recipe:
    return draft(format, text, *beside, gpus=gpus, **more).recipe


def setup_on_eight(recipe: Recipe) -> TrainSetup:
    shape = shape_from_registry("meta-llama/Llama-3.1-8B")
    assert shape is not None
    return setup_of_recipe(recipe, hardware_from_name("8xh100-80gb"), shape)


AXOLOTL = (
    "base_model: NousResearch/Llama-3.2-1B\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\nsequence_len: 4096\n"
)
FACTORY = "model_name_or_path: Qwen/Qwen3-4B\nstage: sft\ndo_train: true\nbf16: true\n"
TRL = "model_name_or_path: Qwen/Qwen3-0.6B\ndataset_name: a/b\nlearning_rate: 1.0e-5\noutput_dir: out\n"
TRAINER = "per_device_train_batch_size: 4\ngradient_accumulation_steps: 2\nlearning_rate: 1.0e-5\nbf16: true\n"
ZERO3 = "zero_optimization: {stage: 3}\nbf16: {enabled: auto}\ntrain_micro_batch_size_per_gpu: auto\n"


# --- tables --------------------------------------------------------------------------------------


def choices_of(table: Table, field: str) -> tuple[str, ...]:
    shape = table.fields[field].shape
    return shape.values if isinstance(shape, OneOf) else ()


@pytest.mark.parametrize("format", FORMATS)
def test_each_table_has_legal_fields_values_and_words(format: str) -> None:
    table = mapping_of(format)
    legal = schema().fields["recipe"].shape
    assert isinstance(legal, Table)
    assert table["program"] in read_table("recipes.toml")
    for name, ways in table["recipe"].items():
        assert ways, name
        for way in ways:
            assert not way.keys() - {"key", "values", "words", "also", "contains", "gives", "filled", "default"}, name
            assert "key" in way or "default" in way, (name, way)
            choices = choices_of(legal, name) if name in Recipe._fields else ()
            given = [*way.get("values", {}).values(), *(way[key] for key in ("default", "gives") if key in way)]
            assert not choices or {value for value in given if value != ""} <= set(choices), (name, way)


def test_shared_words_are_words_of_a_recipe() -> None:
    legal = schema().fields["recipe"].shape
    assert isinstance(legal, Table)
    words = read_table("foreign/mapping/words.toml")
    for table, field in (("hf_optimizer", "optimizer"), ("hf_attention", "attention"), ("dtype", "weight_dtype")):
        assert set(words[table].values()) <= set(choices_of(legal, field))


@pytest.mark.parametrize("format", FORMATS)
def test_an_empty_file_gives_a_draft(format: str) -> None:
    found = draft(format, "")
    assert found.recipe.program == mapping_of(format)["program"]
    assert found.run.recipe == found.recipe


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.builds(Open, st.text(max_size=8)),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(FORMATS), st.data(), st.none() | st.integers(1, 64))
def test_no_value_of_a_key_raises_and_all_that_is_found_is_legal(
    format: str, data: st.DataObject, gpus: int | None
) -> None:
    ways = [way for ways in mapping_of(format)["recipe"].values() for way in ways if way.get("key")]
    keys = sorted({key for way in ways for key in (way["key"] if isinstance(way["key"], list) else [way["key"]])})
    values = data.draw(st.dictionaries(st.sampled_from(keys), VALUES, max_size=8))
    found = to_recipe((ForeignPart(format, values, Document("", "x.yaml", values)),), gpus)
    assert found is not None
    for name, value in found.recipe._asdict().items():
        assert not isinstance(value, Open), name
        if value is not None and types()[name] == int | None:
            assert type(value) is int, name
            assert value > 0, name


# --- programs ------------------------------------------------------------------------------------


def test_axolotl_trains_in_the_type_of_its_computation() -> None:
    found = draft("axolotl", AXOLOTL + "bf16: auto\noptimizer: adamw_bnb_8bit\ngradient_checkpointing: true\n")
    assert found.recipe == Recipe(
        program="axolotl", objective="sft", model_name="NousResearch/Llama-3.2-1B", ctx_tokens=4096, micro_batch=2,
        micro_batches_per_step=4, weight_dtype="bf16", compute_dtype="bf16", optimizer="adamw-8bit", head="full",
        activation_checkpointing="full", adapter="none", attention="sdpa",
    )  # fmt: skip
    assert found.keys["ctx_tokens"] == "sequence_len"
    assert found.lines[0].startswith("weights bf16, products bf16: axolotl loads weights")


def test_axolotl_plugin_for_the_loss_is_on_once_it_is_listed() -> None:
    plugin = "plugins:\n  - axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin\n"
    assert recipe("axolotl", AXOLOTL + plugin).head == "cce"
    assert recipe("axolotl", AXOLOTL + plugin + "cut_cross_entropy: false\n").head == "full"
    assert recipe("axolotl", AXOLOTL + "plugins:\n  - axolotl.integrations.liger.LigerPlugin\n").head == "full"


def test_products_have_the_type_of_the_weights_without_mixed_precision() -> None:
    pure = draft("trl", TRL + "dtype: bfloat16\nbf16: false\n")
    assert (pure.recipe.weight_dtype, pure.recipe.compute_dtype) == ("bf16", "bf16")
    assert "mixed precision is off" in pure.because
    assert recipe("trl", TRL + "bf16: false\n").compute_dtype == "fp32"


def test_trl_trains_adapters_of_a_quantised_base_in_16_bits() -> None:
    lora = TRL + "dtype: bfloat16\nuse_peft: true\n"
    assert recipe("trl", lora).weight_dtype is None
    assert recipe("trl", lora + "load_in_4bit: true\n").weight_dtype == "bf16"


def test_a_script_on_the_trainer_quantises_by_its_own_words() -> None:
    text = "model_name_or_path: m\nuse_peft_lora: true\nuse_4bit_quantization: true\nuse_nested_quant: true\n"
    found = recipe("hf", text + "use_flash_attn: true\n")
    assert (found.adapter, found.quantization, found.attention) == ("lora", "nf4-dq", "flash")


def test_the_old_word_of_ms_swift_names_its_version() -> None:
    assert recipe("ms-swift", "model_id_or_path: m\nsft_type: lora\n").version == "2024-06"
    assert recipe("ms-swift", "model: m\ntuner_type: lora\n").version is None


def test_axolotl_batch_size_leaves_the_gpus_out() -> None:
    text = "base_model: m\nmicro_batch_size: 2\nbatch_size: 16\n"
    assert recipe("axolotl", text, gpus=8).micro_batches_per_step == 8


def test_what_a_file_leaves_out_is_listed_with_its_key() -> None:
    (taken,) = [line for line in draft("axolotl", "base_model: m\n").assumed if line.startswith("not in the file")]
    assert "axolotl's defaults" in taken
    assert "ctx_tokens = 512 (sequence_len)" in taken
    assert 'activation_checkpointing = "none" (gradient_checkpointing)' in taken


def test_an_adapter_has_a_base_and_its_rank_only_if_one_is_trained() -> None:
    lora = recipe("axolotl", AXOLOTL + "adapter: qlora\nload_in_4bit: true\nlora_r: 64\nlora_target_linear: true\n")
    assert (lora.adapter, lora.adapter_rank, lora.adapter_targets) == ("lora", 64, ("all",))
    assert (lora.quantization, lora.base_dtype, lora.weight_dtype) == ("nf4-dq", "bf16", None)
    full = recipe("axolotl", AXOLOTL + "lora_r: 64\n")
    assert (full.adapter, full.adapter_rank, full.base_dtype) == ("none", None, None)


def test_fsdp_with_mixed_precision_trains_fp32_weights() -> None:
    found = draft(
        "axolotl", AXOLOTL + "bf16: true\nfsdp_config:\n  offload_params: true\n  reshard_after_forward: true\n"
    )
    assert (found.recipe.sharding, found.recipe.weight_dtype) == ("fsdp", "fp32")
    assert found.recipe.optimizer_offload is True
    assert found.recipe.parameter_offload is True
    assert "accelerate casts trained weights to fp32" in found.because


def test_weights_keep_their_type_under_the_second_fsdp_of_axolotl() -> None:
    """Its own fsdp2_prepare_model takes the place of that of accelerate, and casts nothing."""
    for version, kind in ((1, "fp32"), (2, "bf16")):
        text = f"{AXOLOTL}bf16: true\nfsdp_version: {version}\nfsdp_config: {{reshard_after_forward: true}}\n"
        assert recipe("axolotl", text).weight_dtype == kind


def test_a_deepspeed_file_decides_the_sharding_and_the_types() -> None:
    found = recipe("axolotl", AXOLOTL + "bf16: true\ndeepspeed: ds.json\n", part("deepspeed", ZERO3))
    assert (found.sharding, found.weight_dtype, found.micro_batch) == ("zero3", "bf16", 2)


def test_a_deepspeed_file_that_is_not_there_is_known_if_the_program_ships_it() -> None:
    shipped_file = draft("axolotl", AXOLOTL + "deepspeed: deepspeed_configs/zero2.json\n")
    assert (shipped_file.recipe.sharding, shipped_file.recipe.optimizer_offload) == ("zero2", True)
    assert any("as axolotl ships it" in line for line in shipped_file.assumed)
    own = draft("axolotl", AXOLOTL + "deepspeed: mine.json\n")
    assert own.recipe.sharding is None
    assert own.not_known == {"sharding": "deepspeed = mine.json; the file is not there"}


def test_llama_factory_checkpoints_and_trains_fp32_weights() -> None:
    full = recipe("llama-factory", FACTORY + "finetuning_type: full\n")
    assert (full.weight_dtype, full.activation_checkpointing) == ("fp32", "full")
    assert (full.micro_batch, full.ctx_tokens) == (8, 2048)
    pure = recipe(
        "llama-factory", FACTORY + "finetuning_type: full\npure_bf16: true\ndisable_gradient_checkpointing: true\n"
    )
    assert (pure.weight_dtype, pure.activation_checkpointing) == ("bf16", "none")
    zero3 = recipe("llama-factory", FACTORY + "finetuning_type: full\n", part("deepspeed", ZERO3))
    assert (zero3.sharding, zero3.weight_dtype) == ("zero3", "bf16")


def test_llama_factory_trains_an_adapter_unless_the_file_sets_another_method() -> None:
    lora = recipe("llama-factory", FACTORY + "lora_target: q_proj,v_proj\n")
    assert (lora.adapter, lora.adapter_rank, lora.adapter_targets) == ("lora", 8, ("q_proj", "v_proj"))
    assert lora.base_dtype == "bf16"
    dpo = recipe("llama-factory", FACTORY.replace("sft", "dpo") + "pref_loss: orpo\nenable_liger_kernel: true\n")
    assert (dpo.objective, dpo.reference_model, dpo.head) == ("dpo", False, "full")


def test_llama_factory_v1_counts_the_global_batch() -> None:
    text = "model: Qwen/Qwen3-4B\nmicro_batch_size: 2\nglobal_batch_size: 32\ndist_config: {name: fsdp2}\n"
    found = recipe("llama-factory-v1", text, gpus=4)
    assert (found.sharding, found.micro_batches_per_step, found.weight_dtype) == ("fsdp", 4, "fp32")
    assert "micro_batches_per_step" in draft("llama-factory-v1", text).not_known


def test_trl_loads_fp32_and_checkpoints() -> None:
    found = draft("trl", TRL)
    assert (found.recipe.weight_dtype, found.recipe.activation_checkpointing) == ("fp32", "full")
    assert (found.recipe.micro_batch, found.recipe.ctx_tokens, found.recipe.head) == (8, 1024, "token-chunked")
    assert recipe("trl", TRL + "dtype: bfloat16\n").weight_dtype == "bf16"
    assert recipe("trl", TRL + "torch_dtype: bfloat16\nuse_peft: true\n").base_dtype == "bf16"
    lora = recipe("trl", TRL + "use_peft: true\n")
    assert (lora.base_dtype, lora.adapter_rank) == ("fp32", 16)


def test_trl_grpo_has_prompts_answers_and_an_engine() -> None:
    text = TRL + "num_generations: 8\nmax_prompt_length: 256\nmax_completion_length: 1024\nbeta: 0.04\nuse_vllm: true\n"
    found = recipe("trl", text)
    assert (found.objective, found.ctx_tokens, found.reference_model) == ("grpo", 1280, True)
    assert found.engine_memory_fraction == 0.3
    assert recipe("trl", text + "vllm_mode: server\n").engine_memory_fraction is None
    assert recipe("trl", text + "vllm_enable_sleep_mode: true\n").engine_memory_fraction is None


def test_transformers_4_and_5_load_other_types_and_both_are_listed() -> None:
    found = draft("hf", TRAINER + "model_name_or_path: m\nmax_seq_length: 2048\n")
    assert found.recipe.weight_dtype == "bf16"
    assert [other.values for other in found.otherwise] == [{"weight_dtype": "fp32"}]
    assert "transformers 4" in found.otherwise[0].when
    assert draft("hf", TRAINER + "torch_dtype: bfloat16\n").otherwise == ()
    assert draft("hf", TRAINER, part("deepspeed", ZERO3)).otherwise == ()


def test_fsdp_by_words_of_the_trainer() -> None:
    found = recipe("hf", TRAINER + 'fsdp: "shard_grad_op auto_wrap offload"\n')
    assert (found.sharding, found.weight_dtype, found.parameter_offload) == ("zero2", "fp32", True)


@pytest.mark.parametrize(
    ("accelerate", "sharding", "gpus"),
    [
        ("distributed_type: MULTI_GPU\nnum_processes: 4\n", "ddp", 4),
        ("distributed_type: 'NO'\nnum_processes: 1\n", "none", 1),
        ("distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_sharding_strategy: FULL_SHARD}\n", "fsdp", 8),
        ("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}\n", "zero2", None),
        ("distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {zero_stage: 3}\n", "zero3", 8),
    ],
)
def test_an_accelerate_file_beside_a_trainer_decides_the_sharding(
    accelerate: str, sharding: str, gpus: int | None
) -> None:
    found = recipe("trl", TRL, part("accelerate", accelerate + "mixed_precision: bf16\n"))
    assert (found.sharding, found.gpus) == (sharding, gpus)


def test_a_launcher_sets_the_number_of_gpus() -> None:
    torchrun = part("torchrun", "nproc_per_node: 8\nnnodes: 2\n")
    assert recipe("trl", TRL, torchrun).gpus == 16
    assert recipe("trl", TRL, torchrun).sharding == "ddp"
    assert recipe("trl", TRL, part("launch", "world: 4\n")).gpus == 4
    assert recipe("trl", TRL, part("sbatch", "nodes: 2\ngres: gpu:a100:4\n")).gpus == 8
    assert recipe("trl", TRL, part("sbatch", "nodes: 2\ngpus_per_node: h100:8\n")).gpus == 16
    assert recipe("trl", TRL, part("skypilot", "num_nodes: 2\nresources: {accelerators: H100:8}\n")).gpus == 16
    assert recipe("trl", TRL, part("launch", "nproc: 8\nnnodes: $NODES\n")).gpus is None
    assert recipe("trl", TRL, part("launch", "kind: python\nworld: 1\n")).gpus is None
    job = part("sbatch", "nodes: 4\ngres: gpu:8\n")
    assert recipe("trl", TRL, part("torchrun", "nproc_per_node: 8\nnnodes: $SLURM_NNODES\n"), job).gpus == 32
    unknown = draft("trl", TRL, part("torchrun", "nproc_per_node: $GPUS\n"))
    assert unknown.recipe.gpus is None
    assert unknown.not_known["gpus"] == "nproc_per_node = $GPUS"
    assert recipe("trl", TRL).gpus is None


def test_flags_of_accelerate_launch_overrule_its_file() -> None:
    file = part("accelerate", "distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: bf16\n")
    flags = part("accelerate-launch", "num_processes: 8\nuse_deepspeed: true\nzero_stage: 3\n")
    found = recipe("trl", TRL, file, flags)
    assert (found.gpus, found.sharding, found.weight_dtype) == (8, "zero3", "bf16")
    sharded = recipe("trl", TRL, part("accelerate-launch", "use_fsdp: true\nfsdp_sharding_strategy: SHARD_GRAD_OP\n"))
    assert sharded.sharding == "zero2"


def test_ms_swift_divides_sixteen_sequences() -> None:
    text = "model: Qwen/Qwen3-8B\ntuner_type: full\ntorch_dtype: bfloat16\nmax_length: 4096\n"
    assert recipe("ms-swift", text, gpus=4).micro_batches_per_step == 4
    assert recipe("ms-swift", text + "deepspeed: zero2_offload\n").optimizer_offload is True
    assert recipe("ms-swift", text).weight_dtype == "bf16"
    open_length = draft("ms-swift", "model: Qwen/Qwen3-8B\n")
    assert open_length.recipe.ctx_tokens is None
    assert open_length.not_known["ctx_tokens"].startswith("max_length is not set")


TITAN = """
[job]
dump_folder = "./outputs"
[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 1
seq_len = 8192
data_parallel_shard_degree = -1
"""


def test_torchtitan_keeps_fp32_and_checkpoints_selectively() -> None:
    found = draft("torchtitan", "", **tomli.loads(TITAN))
    assert found.recipe.model_name == "meta-llama/Llama-3.1-8B"
    assert (found.recipe.weight_dtype, found.recipe.compute_dtype, found.recipe.sharding) == ("fp32", "bf16", "fsdp")
    assert (found.recipe.micro_batch, found.recipe.activation_checkpointing) == (1, "selective")
    assert recipe("torchtitan", "", gpus=1, **tomli.loads(TITAN)).sharding == "none"


def test_torchtitan_shards_include_context_parallelism() -> None:
    degrees = "[parallelism]\ndata_parallel_shard_degree = 4\ncontext_parallel_degree = 2\n"
    degrees += "[float8]\nenable_float8_linear = true\n"
    found = recipe("torchtitan", "", gpus=8, **tomli.loads(TITAN + degrees))
    assert (found.shards, found.context_parallel, found.compute_dtype) == (8, 2, "float8")


def test_a_torchtitan_file_with_later_keys_has_a_compiled_loss() -> None:
    later = TITAN.replace("data_parallel_shard_degree = -1", "compile = true")
    for text, version in ((TITAN, "2024-12"), (later, None)):
        found = recipe("torchtitan", "", gpus=8, **tomli.loads(text))
        assert found.version == version
        head = setup_on_eight(found._replace(compile=True)).head
        assert (head.kind, head.compiled) == ("full", version is None)
    assert not setup_on_eight(found._replace(compile=False)).head.compiled


def test_a_torchtitan_function_leaves_the_lengths_open() -> None:
    found = draft("torchtitan", "", module="llama3", config="llama3_8b")
    assert found.recipe.model_name == "meta-llama/Llama-3.1-8B"
    assert found.not_known.keys() >= {"micro_batch", "ctx_tokens"}


TUNE = """
model: {_component_: torchtune.models.llama3_1.qlora_llama3_1_8b, lora_attn_modules: [q_proj, output_proj],
  lora_rank: 16, apply_lora_to_mlp: true}
tokenizer: {_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 4096}
optimizer: {_component_: torch.optim.AdamW}
loss: {_component_: torchtune.modules.loss.LinearCrossEntropyLoss}
batch_size: 2
dtype: bf16
enable_activation_checkpointing: true
"""


def test_torchtune_names_model_and_method_in_one_word() -> None:
    found = recipe("torchtune", TUNE, gpus=2)
    assert (found.model_name, found.adapter) == ("meta-llama/Llama-3.1-8B-Instruct", "lora")
    assert found.adapter_targets == ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert (found.quantization, found.weight_dtype, found.head) == ("nf4-dq", "bf16", "token-chunked")
    assert (found.sharding, found.ctx_tokens, found.micro_batches_per_step) == ("fsdp", 4096, 1)
    assert setup_on_eight(found._replace(compile=True)).head.compiled
    apart = recipe("torchtune", TUNE + "custom_sharded_layers: [tok_embeddings, output]\n", gpus=2)
    assert [setup_on_eight(each).layout.ends_apart for each in (found, apart)] == [False, True]
    unknown = draft("torchtune", TUNE.replace("llama3_1.qlora_llama3_1_8b", "mine.builder"))
    assert unknown.recipe.model_name is None
    assert unknown.not_known["model_name"] == "mine.builder"


def test_verl_counts_prompts_and_answers() -> None:
    text = """
algorithm: {adv_estimator: grpo}
data: {max_prompt_length: 512, max_response_length: 1536}
actor_rollout_ref:
  model: {path: Qwen/Qwen3-8B}
  actor: {ppo_mini_batch_size: 64, ppo_micro_batch_size_per_gpu: 4, use_kl_loss: true,
    fsdp_config: {param_offload: true, optimizer_offload: true}}
  rollout: {n: 8}
trainer: {n_gpus_per_node: 8, nnodes: 2}
"""
    found = draft("verl", text)
    made = found.recipe
    assert (made.model_name, made.gpus, made.objective, made.ctx_tokens) == ("Qwen/Qwen3-8B", 16, "grpo", 2048)
    assert (made.micro_batch, made.micro_batches_per_step) == (4, 64 * 8 // 16 // 4)
    assert (made.weight_dtype, made.activation_checkpointing, made.sharding) == ("fp32", "full", "fsdp")
    assert (made.reference_model, made.engine_memory_fraction) == (True, None)
    critic = draft("verl", text.replace("grpo", "gae"))
    assert "critic" in critic.not_known


def test_openrlhf_has_two_names_for_each_flag() -> None:
    old = part(
        "openrlhf",
        "pretrain: Qwen/Qwen3-4B\nmicro_train_batch_size: 4\ntrain_batch_size: 64\nzero_stage: 3\nmax_len: 4096\n",
    )
    values = {
        "model.model_name_or_path": "Qwen/Qwen3-4B",
        "train": {"micro_batch_size": 4, "batch_size": 64},
        "ds.zero_stage": 3,
        "data.max_len": 4096,
    }
    new = ForeignPart("openrlhf", values, Document("", "x.sh", values))
    found = [to_recipe((one,), gpus=8) for one in (old, new)]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0].recipe == found[1].recipe
    made = found[0].recipe
    assert (made.sharding, made.micro_batches_per_step, made.activation_checkpointing) == ("zero3", 2, "none")


MEGATRON = """
num_layers: 32
hidden_size: 4096
ffn_hidden_size: 14336
num_attention_heads: 32
num_query_groups: 8
vocab_size: 128256
swiglu: true
untie_embeddings_and_output_weights: true
bf16: true
micro_batch_size: 1
global_batch_size: 128
seq_length: 8192
tensor_model_parallel_size: 2
use_distributed_optimizer: true
"""


def test_megatron_gives_the_sizes_of_its_model() -> None:
    found = draft("megatron", MEGATRON, gpus=8)
    assert found.sizes is not None
    assert found.sizes["num_hidden_layers"] == 32
    assert found.sizes["model_type"] == "llama"
    assert (found.recipe.sharding, found.recipe.weight_dtype) == ("zero1", "bf16")
    assert found.recipe.micro_batches_per_step == 128 // (8 // 2)
    assert draft("megatron", MEGATRON.replace("vocab_size: 128256\n", "")).sizes is None


def test_a_script_names_the_method_and_openrlhf_too() -> None:
    values = {"model_name_or_path": "m", "learning_rate": 1e-5}
    script = Document("accelerate launch trl/scripts/dpo.py --model_name_or_path m\n", "job.sh", values)
    found = to_recipe((ForeignPart("trl", values, script),))
    assert found is not None
    assert (found.recipe.objective, found.recipe.head) == ("dpo", "full")
    ppo = Document(
        "ray job submit -- python3 -m openrlhf.cli.train_ppo_ray --pretrain m\n", "job.sh", {"pretrain": "m"}
    )
    policy = to_recipe((ForeignPart("openrlhf", {"pretrain": "m"}, ppo),))
    assert policy is not None
    assert policy.recipe.objective == "grpo"


def test_a_trainer_of_its_own_explains_the_words_of_the_trainer_below_it() -> None:
    found = to_recipe((part("hf", TRAINER), part("deepspeed", ZERO3), part("trl", TRL)))
    assert found is not None
    assert (found.recipe.program, found.recipe.sharding) == ("trl", "zero3")


def test_the_first_of_several_trainings_counts() -> None:
    found = to_recipe((part("axolotl", AXOLOTL), part("axolotl", "base_model: other\n")))
    assert found is not None
    assert found.recipe.model_name == "NousResearch/Llama-3.2-1B"
    assert found.assumed[0] == "the first of 2 trainings in the file"


def test_a_deepspeed_file_alone_leaves_the_script_open() -> None:
    zero = "zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}\nbf16: {enabled: true}\n"
    text = f"train_batch_size: 64\ntrain_micro_batch_size_per_gpu: 4\n{zero}"
    found = draft("deepspeed", text, gpus=8)
    assert (found.recipe.sharding, found.recipe.optimizer_offload) == ("zero2", True)
    assert found.recipe.micro_batches_per_step == 2
    assert found.recipe.model_name is None


def test_a_table_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(PROGRAMS, "megatron")
    found = recipe("megatron", MEGATRON, gpus=8)
    assert (found.sharding, found.micro_batches_per_step, found.weight_dtype) == ("zero1", 32, None)


def test_no_part_of_a_trainer_is_no_recipe() -> None:
    assert to_recipe((part("torchrun", "nproc_per_node: 8\n"),)) is None


# --- what is not known ---------------------------------------------------------------------------


def test_a_variable_is_not_known_and_never_guessed() -> None:
    found = draft("trl", TRL + "per_device_train_batch_size: $BATCH\n")
    assert found.recipe.micro_batch is None
    assert found.not_known == {"micro_batch": "per_device_train_batch_size = $BATCH"}
    assert all("micro_batch =" not in line for line in found.assumed)


def test_a_word_that_the_table_does_not_have_is_not_known() -> None:
    found = draft("trl", TRL + "optim: galore_adamw\n")
    assert found.recipe.optimizer is None
    assert found.not_known == {"optimizer": "optim = galore_adamw"}


def test_null_takes_the_default() -> None:
    assert recipe("axolotl", AXOLOTL + "deepspeed:\nfsdp:\nadapter:\n").adapter == "none"


def test_a_change_is_written_in_the_words_of_the_file() -> None:
    assert write_field("axolotl", "activation_checkpointing", "full") == ("gradient_checkpointing", "true")
    assert write_field("llama-factory", "activation_checkpointing", "full") == (
        "disable_gradient_checkpointing",
        "false",
    )
    assert write_field("hf", "optimizer", "adamw-8bit") == ("optim", "adamw_8bit")
    assert write_field("trl", "micro_batch", 4) == ("per_device_train_batch_size", "4")
    assert write_field("hf", "head", "token-chunked") is None
    policy = draft("trl", TRL + "max_prompt_length: 256\nmax_completion_length: 256\n")
    assert policy.write("recipe.ctx_tokens", 256) is None  # the sum of two keys
    assert read_fields("trl", {"optim": "adamw_8bit"})["optimizer"].value == "adamw-8bit"
