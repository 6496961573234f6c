"""Writes a published training as the file or command that its own program reads. Never measures, never estimates.

A setting that the program has no key for raises Unreadable: such a row cannot be written, and is not estimated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from memory_rows import Row
from row_cells import Unreadable

from prime_train.config.foreign.recipe.fields import mapping_of
from prime_train.spec.prime_rl_parts import Recipe

_TORCH = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_QWEN_TARGETS = ("c_attn", "c_proj", "w1", "w2")  # finetune.py of QwenLM/Qwen: lora_target_modules


class Training(NamedTuple):
    """A row's settings, and the number of its GPUs."""

    recipe: Recipe
    gpus: int

    @property
    def model(self) -> str:
        return self.recipe.model_name or ""

    @property
    def adapted(self) -> bool:
        return self.recipe.adapter not in (None, "none")

    @property
    def pure(self) -> bool:
        """Whether all weights are trained in 16 bits, without mixed precision."""
        return not self.adapted and self.recipe.weight_dtype == "bf16"

    @property
    def checkpoints(self) -> bool:
        return self.recipe.activation_checkpointing == "full"


class ForeignFile(NamedTuple):
    """A name whose ending the program expects, and the text."""

    name: str
    text: str


def write(row: Row) -> ForeignFile:
    """The file of a row's program. Raises Unreadable for a program without one, or a setting that no key has."""
    assert row.run.recipe is not None
    recipe = row.run.recipe
    training = Training(recipe, row.hardware.gpus)
    program = recipe.program or ""
    if program == "hf" and "fms-acceleration" in row.source:
        program = "axolotl" if recipe.head == "fused-loss" else "trl"  # the Trainer's keys have no fused loss
    if program not in _WRITERS:
        raise Unreadable(f"{program} has no file that is read here")
    _refuse(training, program)
    return _WRITERS[program](training)


def _refuse(training: Training, program: str) -> None:
    recipe = training.recipe
    if recipe.quantization == "int4" or (recipe.quantization == "int8" and "qwen" in program + training.model.lower()):
        raise Unreadable("the checkpoint is quantised, and no key says so")
    if recipe.trains_embeddings and program == "qwen-finetune":
        raise Unreadable("the script decides by the name of the model that the embedding is trained")
    if program == "axolotl" and recipe.sharding == "fsdp" and training.pure and recipe.program != "axolotl":
        raise Unreadable("axolotl trains fp32 weights under FSDP 1")
    if recipe.sharding == "device_map":
        raise Unreadable("the script spreads layers over GPUs, and no key says so")


# --- text ----------------------------------------------------------------------------------------


def _yaml(values: Mapping[str, Any]) -> str:
    """A mapping as YAML; a nested value in the notation of JSON, which is YAML too. None is left out."""
    kept = {key: value for key, value in values.items() if value is not None}
    return "".join(f"{key}: {value if isinstance(value, str) else json.dumps(value)}\n" for key, value in kept.items())


def _toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    for name, table in tables.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items() if value is not None]
    return "\n".join(lines) + "\n"


def _command(start: str, flags: Mapping[str, Any]) -> str:
    """A command over several lines; True is the word, as argument parsers of dataclasses have it, None is left out."""
    words = [
        f"--{key} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        for key, value in flags.items()
        if value is not None
    ]
    return " \\\n    ".join([start, *words]) + "\n"


def _beside(name: str, text: str) -> str:
    """Lines of a script that write a file."""
    return f"cat > {name} <<'EOF'\n{text}EOF\n"


def _script(*parts: str) -> ForeignFile:
    return ForeignFile("train.sh", "#!/bin/bash\n" + "".join(parts))


def _zero_stage(recipe: Recipe) -> int | None:
    sharding = recipe.sharding or ""
    return int(sharding[-1]) if sharding.startswith("zero") else None


def _zero_file(recipe: Recipe) -> dict[str, Any]:
    """A DeepSpeed file of a stage."""
    offload = {"device": "cpu"}
    zero: dict[str, Any] = {"stage": _zero_stage(recipe) or 3}
    zero |= {"offload_optimizer": offload} if recipe.optimizer_offload else {}
    zero |= {"offload_param": offload} if recipe.parameter_offload else {}
    return {
        "bf16": {"enabled": recipe.compute_dtype == "bf16"},
        "fp16": {"enabled": recipe.compute_dtype == "fp16"},
        "zero_optimization": zero,
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
    }


def _accelerate_file(training: Training) -> dict[str, Any]:
    recipe = training.recipe
    mixed = "no" if training.pure else recipe.compute_dtype
    found: dict[str, Any] = {"num_processes": training.gpus, "mixed_precision": f"'{mixed}'", "num_machines": 1}
    stage = _zero_stage(recipe)
    if stage is not None:
        devices = {
            "offload_optimizer_device": "cpu" if recipe.optimizer_offload else "none",
            "offload_param_device": "cpu" if recipe.parameter_offload else "none",
        }
        return {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": stage, **devices}, **found}
    fsdp = {"fsdp_sharding_strategy": "FULL_SHARD", "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}
    fsdp["fsdp_offload_params"] = bool(recipe.parameter_offload)  # type: ignore[assignment]
    kind = {"distributed_type": "FSDP", "fsdp_config": fsdp}
    return {**(kind if recipe.sharding == "fsdp" else {"distributed_type": "MULTI_GPU"}), **found}


def _optimizer(recipe: Recipe) -> str:
    names = {"adamw": "adamw_torch", "adamw-8bit": "adamw_8bit", "paged-adamw-8bit": "paged_adamw_8bit"}
    return names.get(recipe.optimizer or "adamw", recipe.optimizer or "")


def _attention(recipe: Recipe) -> str:
    return "flash_attention_2" if "flash" in (recipe.attention or "") else recipe.attention or "sdpa"


# --- programs on transformers' Trainer -----------------------------------------------------------


def _axolotl(training: Training) -> ForeignFile:
    recipe = training.recipe
    quantized, sharded = recipe.quantization is not None, recipe.sharding == "fsdp"
    own = recipe.program == "axolotl"  # its examples have FSDP 2, under which weights keep their type
    values = {
        "base_model": training.model,
        "datasets": [{"path": "tatsu-lab/alpaca", "type": "alpaca"}],
        "adapter": ("qlora" if quantized else "lora") if training.adapted else None,
        "load_in_4bit": recipe.quantization in ("nf4", "nf4-dq") or None,
        "load_in_8bit": recipe.quantization == "int8" or None,
        "lora_r": recipe.adapter_rank,
        "lora_target_linear": True if recipe.adapter_targets == ("all",) else None,
        "lora_target_modules": list(recipe.adapter_targets or ()) if recipe.adapter_targets != ("all",) else None,
        "lora_modules_to_save": ["embed_tokens", "lm_head"] if recipe.trains_embeddings else None,
        "sequence_len": recipe.ctx_tokens,
        "sample_packing": True,
        "micro_batch_size": recipe.micro_batch,
        "gradient_accumulation_steps": recipe.micro_batches_per_step,
        "optimizer": _optimizer(recipe),
        "bf16": "full" if training.pure and not own else "auto",
        "gradient_checkpointing": training.checkpoints,
        "activation_offloading": True if recipe.activation_offloading else None,
        "attn_implementation": _attention(recipe),
        "flash_attn_cross_entropy": True if recipe.head == "fused-loss" else None,
        "liger_fused_linear_cross_entropy": True if recipe.head == "liger" else None,
        "plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"] if recipe.head == "cce" else None,
        "fsdp": ["full_shard", "auto_wrap"] if sharded and not own else None,
        "fsdp_version": 2 if sharded and own else None,
        "fsdp_config": {"offload_params": bool(recipe.parameter_offload)} if sharded else None,
        "output_dir": "./outputs/out",
    }
    return ForeignFile("axolotl.yaml", _yaml(values))


def _llama_factory(training: Training) -> ForeignFile:
    recipe, stage = training.recipe, _zero_stage(training.recipe)
    offload = "_offload" if recipe.optimizer_offload else ""
    values = {
        "model_name_or_path": training.model,
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "lora" if training.adapted else "full",
        "lora_rank": recipe.adapter_rank,
        "lora_target": ",".join(recipe.adapter_targets) if recipe.adapter_targets else None,
        "quantization_bit": {"nf4": 4, "nf4-dq": 4, "int8": 8}.get(recipe.quantization or ""),
        "deepspeed": f"examples/deepspeed/ds_z{stage}{offload}_config.json" if stage is not None else None,
        "dataset": "alpaca_en_demo",
        "template": "llama3",
        "cutoff_len": recipe.ctx_tokens,
        "per_device_train_batch_size": recipe.micro_batch,
        "gradient_accumulation_steps": recipe.micro_batches_per_step,
        "flash_attn": "fa2" if "flash" in (recipe.attention or "") else None,
        "enable_liger_kernel": True if recipe.head == "liger" else None,
        "optim": _optimizer(recipe),
        "fp16": True if recipe.compute_dtype == "fp16" else None,
        "bf16": True if recipe.compute_dtype == "bf16" else None,
        "output_dir": "saves/out",
    }
    return ForeignFile("train.yaml", _yaml(values))


def _trl(training: Training) -> ForeignFile:
    """The script of TRL, and the accelerate file that it is started with on several GPUs."""
    recipe = training.recipe
    double = recipe.quantization == "nf4-dq"
    flags = {
        "model_name_or_path": training.model,
        "dataset_name": "trl-lib/Capybara",
        "dtype": "bfloat16" if training.pure or training.adapted else "float32",
        "use_peft": training.adapted,
        "lora_r": recipe.adapter_rank,
        "lora_target_modules": list(recipe.adapter_targets) if recipe.adapter_targets else None,
        "load_in_4bit": True if recipe.quantization in ("nf4", "nf4-dq") else None,
        "use_bnb_nested_quant": True if double else None,
        "attn_implementation": _attention(recipe),
        "packing": True,
        "max_length": recipe.ctx_tokens,
        "per_device_train_batch_size": recipe.micro_batch,
        "gradient_accumulation_steps": recipe.micro_batches_per_step,
        "gradient_checkpointing": training.checkpoints,
        "loss_type": "nll",
        "use_liger_kernel": True if recipe.head == "liger" else None,
        "optim": _optimizer(recipe),
        "bf16": not training.pure,
        "output_dir": "out",
    }
    if training.gpus == 1:
        return _script(_command("python trl/scripts/sft.py", flags))
    file = _beside("accelerate.yaml", _yaml(_accelerate_file(training)))
    return _script(file, _command("accelerate launch --config_file accelerate.yaml trl/scripts/sft.py", flags))


def _peft_script(training: Training) -> ForeignFile:
    """examples/sft/train.py of huggingface/peft, which is on the Trainer."""
    recipe = training.recipe
    quantized = recipe.quantization is not None
    flags = {
        "model_name_or_path": training.model,
        "dataset_name": "smangrul/ultrachat-10k-chatml",
        "max_seq_length": recipe.ctx_tokens,
        "bf16": True,
        "packing": True,
        "output_dir": "out",
        "per_device_train_batch_size": recipe.micro_batch,
        "gradient_accumulation_steps": recipe.micro_batches_per_step,
        "gradient_checkpointing": training.checkpoints,
        "use_flash_attn": "flash" in (recipe.attention or ""),
        "use_peft_lora": training.adapted,
        "lora_r": recipe.adapter_rank,
        "lora_target_modules": "all-linear",
        "use_4bit_quantization": quantized,
        "use_nested_quant": recipe.quantization == "nf4-dq" or None,
        "bnb_4bit_quant_storage_dtype": "bfloat16" if quantized else None,
    }
    file = _beside("accelerate.yaml", _yaml(_accelerate_file(training)))
    return _script(file, _command("accelerate launch --config_file accelerate.yaml train.py", flags))


def _qwen(training: Training) -> ForeignFile:
    """finetune/finetune_*.sh of QwenLM/Qwen. Without an adapter, or on several GPUs, it is on DeepSpeed."""
    recipe = training.recipe
    on_deepspeed = not training.adapted or _zero_stage(recipe) is not None
    flags = {
        "model_name_or_path": training.model,
        "data_path": "data.json",
        "bf16": True,
        "output_dir": "out",
        "per_device_train_batch_size": recipe.micro_batch,
        "gradient_accumulation_steps": recipe.micro_batches_per_step,
        "model_max_length": recipe.ctx_tokens,
        "gradient_checkpointing": training.checkpoints,
        "use_lora": True if training.adapted else None,
        "lora_r": recipe.adapter_rank,
        "lora_target_modules": list(recipe.adapter_targets or _QWEN_TARGETS) if training.adapted else None,
        "deepspeed": "ds_config.json" if on_deepspeed else None,
    }
    file = _beside("ds_config.json", json.dumps(_zero_file(recipe), indent=1) + "\n") if on_deepspeed else ""
    start = f"torchrun --nproc_per_node {training.gpus} --nnodes 1 finetune.py"
    return _script(file, _command(start, flags))


def _ms_swift(training: Training) -> ForeignFile:
    recipe, stage = training.recipe, _zero_stage(training.recipe)
    is_old = recipe.version is not None
    targets = list(recipe.adapter_targets or ("all-linear",)) if training.adapted else None
    flags = {
        "model_id_or_path" if is_old else "model": training.model,
        "sft_type" if is_old else "tuner_type": "lora" if training.adapted else "full",
        "dataset": "cls-fudan-news-zh" if is_old else "AI-ModelScope/alpaca-gpt4-data-en",
        "dtype" if is_old else "torch_dtype": "bf16" if is_old else "bfloat16",
        "max_length": recipe.ctx_tokens,
        "batch_size" if is_old else "per_device_train_batch_size": recipe.micro_batch,
        "gradient_accumulation_steps": recipe.micro_batches_per_step,
        "lora_rank": recipe.adapter_rank,
        "lora_target_modules" if is_old else "target_modules": targets,
        "quantization_bit" if is_old else "quant_bits": {"nf4": 4, "nf4-dq": 4, "int8": 8}.get(
            recipe.quantization or ""
        ),
        "gradient_checkpointing": str(training.checkpoints).lower(),
        "use_flash_attn" if is_old else "attn_impl": ("true" if is_old else "flash_attn")
        if "flash" in (recipe.attention or "")
        else None,
        "use_liger_kernel": "true" if recipe.head == "liger" else None,
        "optim": {"adamw": "adamw_torch"}.get(recipe.optimizer or "adamw", recipe.optimizer),
        "deepspeed": f"zero{stage}" if stage is not None else None,
        "output_dir": "output",
    }
    command = "swift rlhf --rlhf_type dpo" if recipe.objective == "dpo" else "swift sft"
    return _script(f"NPROC_PER_NODE={training.gpus} " if training.gpus > 1 else "", _command(command, flags))


# --- programs with a loop of their own -----------------------------------------------------------


def _named(program: str, model: str) -> str:
    """The words of a program for a model; its instructed version has the same sizes."""
    plain = model.removesuffix("-Instruct")
    for words, name in mapping_of(program)["models"].items():
        if name.removesuffix("-Instruct") == plain:
            return str(words)
    raise Unreadable(f"{program} has no words for {model}")


def _torchtitan(training: Training) -> ForeignFile:
    """A file with the keys of 2024, of 2025, or the flags of 2026 whose loss is in chunks."""
    recipe = training.recipe
    name, flavor = _named("torchtitan", training.model).split()
    if recipe.head == "token-chunked":
        flags = {
            "module": name,
            "config": f"{name}_{flavor.lower()}",
            "parallelism.data_parallel_shard_degree": training.gpus,
            "training.num_tokens_per_microbatch_per_dp_rank": (recipe.micro_batch or 1) * (recipe.ctx_tokens or 1),
            "training.max_context_length": recipe.ctx_tokens,
            "compile.enable": bool(recipe.compile),
        }
        return _script(_command(f"torchrun --standalone --nproc_per_node {training.gpus} -m torchtitan.train", flags))
    is_old, float8 = recipe.version is not None, recipe.compute_dtype == "float8"
    matrices = {"data_parallel_shard_degree": -1, "tensor_parallel_degree": recipe.tensor_parallel or 1}
    stages = {
        "context_parallel_degree": recipe.context_parallel or 1,
        "pipeline_parallel_degree": recipe.pipeline_parallel or 1,
    }
    tables: dict[str, dict[str, Any]] = {
        "job": {"dump_folder": "./outputs"},
        "model": {"name": name, "flavor": flavor} | ({"converters": ["float8"]} if float8 and not is_old else {}),
        "optimizer": {"name": "AdamW", "lr": 3e-4},
        "training": {
            "batch_size" if is_old else "local_batch_size": recipe.micro_batch,
            "seq_len": recipe.ctx_tokens,
            "steps": 1000,
            "compile": bool(recipe.compile),
            **(matrices if is_old else {}),
        },
        "activation_checkpoint": {"mode": recipe.activation_checkpointing},
    }
    tables |= {"experimental": stages} if is_old else {"parallelism": matrices | stages}
    if float8 and is_old:
        tables["float8"] = {"enable_float8_linear": True}
    return ForeignFile("train.toml", _toml(tables))


_TUNE_TARGETS = {
    "q": ("q_proj",),
    "v": ("v_proj",),
    "q_proj": ("q_proj",),
    "v_proj": ("v_proj",),
    "attn_qvo": ("q_proj", "v_proj", "output_proj"),
}
_ATTENTION = ("q_proj", "k_proj", "v_proj", "output_proj")


def _torchtune(training: Training) -> ForeignFile:
    recipe = training.recipe
    family, _, builder = _named("torchtune", training.model).partition(".")
    targets = recipe.adapter_targets or ("q", "v")
    method = "" if not training.adapted else "qlora_" if recipe.quantization else "lora_"
    model: dict[str, Any] = {"_component_": f"torchtune.models.{family}.{method}{builder}"}
    if training.adapted:
        is_all = targets == ("all",)
        wanted = [name for target in targets for name in _TUNE_TARGETS.get(target, ())]
        model |= {"lora_attn_modules": list(_ATTENTION) if is_all else wanted, "lora_rank": recipe.adapter_rank}
        model |= {"apply_lora_to_mlp": is_all or "mlp" in targets}
    optimizer = {"adamw-8bit": "torchao.optim.AdamW8bit", "paged-adamw-8bit": "bitsandbytes.optim.PagedAdamW8bit"}
    chunked = recipe.head == "token-chunked"
    loss = "torchtune.modules.loss.CEWithChunkedOutputLoss" if chunked else "torch.nn.CrossEntropyLoss"
    values = {
        "model": model,
        "tokenizer": {
            "_component_": "torchtune.models.llama3.llama3_tokenizer",
            "path": "/models/tokenizer.model",
            "max_seq_len": recipe.ctx_tokens,
        },
        "dataset": {"_component_": "torchtune.datasets.alpaca_cleaned_dataset", "packed": True},
        "batch_size": recipe.micro_batch,
        "gradient_accumulation_steps": recipe.micro_batches_per_step,
        "epochs": 1,
        "optimizer": {"_component_": optimizer.get(recipe.optimizer or "", "torch.optim.AdamW")},
        "optimizer_in_bwd": bool(recipe.optimizer_in_backward),
        "loss": {"_component_": loss},
        "dtype": "bf16",
        "enable_activation_checkpointing": training.checkpoints,
        "enable_activation_offloading": bool(recipe.activation_offloading),
        "fsdp_cpu_offload": bool(recipe.parameter_offload),
        "custom_sharded_layers": ["tok_embeddings", "output"] if recipe.shards_ends else None,
        "compile": bool(recipe.compile),
    }
    return ForeignFile("torchtune.yaml", _yaml(values))


def _openrlhf(training: Training) -> ForeignFile:
    recipe = training.recipe
    flags = {
        "pretrain": training.model,
        "dataset": "Open-Orca/OpenOrca",
        "max_len": recipe.ctx_tokens,
        "micro_train_batch_size": recipe.micro_batch,
        "train_batch_size": (recipe.micro_batch or 1) * (recipe.micro_batches_per_step or 1) * training.gpus,
        "zero_stage": _zero_stage(recipe),
        "save_path": "out",
    }
    switches = ["--bf16", "--flash_attn"]
    switches += ["--gradient_checkpointing"] if training.checkpoints else []
    switches += ["--adam_offload"] if recipe.optimizer_offload else []
    start = f"deepspeed --num_gpus {training.gpus} --module openrlhf.cli.train_sft {' '.join(switches)}"
    return _script(_command(start, flags))


_WRITERS: Mapping[str, Callable[[Training], ForeignFile]] = {
    "axolotl": _axolotl,
    "llama-factory": _llama_factory,
    "trl": _trl,
    "hf": _peft_script,
    "qwen-finetune": _qwen,
    "ms-swift": _ms_swift,
    "torchtitan": _torchtitan,
    "torchtune": _torchtune,
    "openrlhf": _openrlhf,
}
