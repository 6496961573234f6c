"""Resolves a `[recipe]` to everything that the memory of its training depends on. Pure.

What the recipe does not set is the usual value of its program and version, from registry/recipes.toml.
"""

from __future__ import annotations

import re
from typing import Any

from prime_train.config.recipe import OPTIMIZERS
from prime_train.estimate.memory.sharding import ALL_LINEAR, adapted_outputs, lora_parameters
from prime_train.estimate.memory.train_setup import (
    AdapterSize,
    Checkpointing,
    Head,
    ModelLayout,
    Numerics,
    Offload,
    Sharding,
    TrainSetup,
)
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.values import Hardware, Term
from prime_train.registry import gpus
from prime_train.spec.prime_rl_parts import Recipe

_DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "float8": 2.0}
_DEFAULTS = (
    *("head", "weight_dtype", "base_dtype", "sharding", "optimizer", "compile"),
    *("activation_checkpointing", "activation_offloading"),
)
_SCALE_OF_8_BITS = 4 / 256  # an fp32 scale for 256 numbers; arXiv 2110.02861, s. 2
_USUAL_TARGETS: dict[str, tuple[str, ...]] = {"unsloth": ALL_LINEAR, "axolotl": ALL_LINEAR}
_DPO = "arXiv 2305.18290, s. 4: chosen and rejected answer in one batch, and their probabilities under a frozen copy"


def program_table(program: str | None) -> dict[str, Any]:
    """The entry of registry/recipes.toml; that of "hf" for an unknown program."""
    tables = gpus.read_table("recipes.toml")
    return dict(tables.get(program or "hf") or tables["hf"])


def usual_values(recipe: Recipe) -> dict[str, Any]:
    """The entry of the recipe's program, with what its version changes."""
    table = program_table(recipe.program)
    for entry in table.get("version", ()):
        if recipe.version is None or _parts(entry["since"]) <= _parts(recipe.version):
            table |= entry
    return table


def with_defaults(recipe: Recipe) -> Recipe:
    """The recipe with the usual values of its program and version for what it does not set.

    DeepSpeed has weights in 16 bits and fp32 masters with every program.
    """
    usual, sharding = usual_values(recipe), recipe.sharding
    on_accelerate = usual.get("adapters") == "peft"
    if (sharding or usual.get("sharding") or "").startswith("zero") and on_accelerate:
        usual = {name: value for name, value in usual.items() if name not in ("weight_dtype", "base_dtype")}
    elif sharding == "fsdp" and casts_under_fsdp(recipe):
        usual["weight_dtype"] = "fp32"
    if recipe.objective not in (None, "sft"):
        usual.pop("head", None)  # a loss in chunks is that of fine-tuning: the others need each log-probability
    return recipe._replace(
        **{name: usual[name] for name in _DEFAULTS if name in usual and getattr(recipe, name) is None}
    )


def casts_under_fsdp(recipe: Recipe) -> bool:
    """Whether FSDP trains fp32 weights of any type: accelerate casts them if products have fewer bits.

    Source: accelerate at 16cb6eb80, accelerator.py:2017 and utils/fsdp_utils.py:806.
    """
    on_accelerate = program_table(recipe.program).get("adapters") == "peft"
    return on_accelerate and recipe.adapter in (None, "none") and recipe.compute_dtype != "fp32"


def _parts(version: str) -> tuple[int, ...]:
    """Example: "0.7.0rc1" -> (0, 7, 0, 1)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:4])


def setup_of_recipe(recipe: Recipe, hardware: Hardware, shape: ModelShape) -> TrainSetup:
    """A published or custom trainer."""
    recipe = with_defaults(recipe)
    table = usual_values(recipe)
    shape = _untied(shape) if table.get("unties") else shape
    ctx_tokens, context = recipe.ctx_tokens or 2048, recipe.context_parallel or 1
    sequences, stages = recipe.micro_batch or 1, recipe.pipeline_parallel or 1
    sequences *= 2 if recipe.objective == "dpo" else 1  # chosen and rejected
    piped = -(-sequences // stages)  # a pipeline splits the batch into one part per stage
    tokens = -(-piped * ctx_tokens // context)
    layout, numerics = _recipe_layout(recipe, hardware), _recipe_numerics(recipe, shape, table)
    return TrainSetup(
        program=table.get("program") or recipe.program or "hf",
        era=table.get("era", ""),
        shape=shape,
        layout=layout,
        numerics=numerics,
        head=_recipe_head(recipe, tokens, shape)._replace(
            compiled=bool(recipe.compile) and (recipe.head or "full") in table.get("compiles_loss", ())
        ),
        tokens=tokens,
        ctx_tokens=ctx_tokens,
        micro_batches=recipe.micro_batches_per_step or 1,
        checkpointing=_recipe_checkpointing(recipe.activation_checkpointing),
        optimizer=recipe.optimizer or "adamw",
        optimizer_in_backward=bool(recipe.optimizer_in_backward),
        fused_optimizer=bool(table.get("fused_optimizer")),
        offload=Offload(
            optimizer=bool(recipe.optimizer_offload) or (recipe.optimizer or "").startswith("paged"),
            parameters=bool(recipe.parameter_offload),
            activations=bool(recipe.activation_offloading) and recipe.activation_checkpointing == "full",
            in_flight=table.get("offload_in_flight", 5),
        ),
        adapter=_recipe_adapter(recipe, shape),
        quantization=recipe.quantization or "",
        compiled=bool(recipe.compile),
        attention=recipe.attention or "",
        beside=_beside(recipe, hardware, shape, layout, numerics),
    )


def loads_in_each_process(setup: TrainSetup) -> bool:
    """Whether each process reads the whole checkpoint, as transformers does without ZeRO-3 or a device map."""
    adapters = program_table(setup.program).get("adapters") == "peft"
    return adapters and setup.layout.sharding not in ("zero3", "device_map")


def _untied(shape: ModelShape) -> ModelShape:
    """The model with a head of its own."""
    if not shape.tie_embeddings:
        return shape
    return shape._replace(parameters=shape.parameters + shape.vocab_size * shape.hidden_size, tie_embeddings=False)


def _beside(
    recipe: Recipe, hardware: Hardware, shape: ModelShape, layout: ModelLayout, numerics: Numerics
) -> tuple[Term, ...]:
    """What else is on the GPU during all of a step. The base below an adapter is its own reference."""
    terms: list[Term] = []
    adapted = recipe.adapter not in (None, "none")
    if (recipe.objective == "dpo" and not adapted) if recipe.reference_model is None else recipe.reference_model:
        size = shape.parameters * numerics.compute / layout.weight_parts
        formula = f"{shape.parameters / 1e6:.1f} M x {numerics.compute:g} B / {layout.weight_parts}"
        terms.append(Term("reference model", size, formula, _DPO))
    if recipe.engine_memory_fraction is not None:
        size = recipe.engine_memory_fraction * hardware.usable_bytes
        formula = f"{recipe.engine_memory_fraction:g} x GPU"
        terms.append(Term("engine's memory", size, formula, "vLLM gpu_memory_utilization, no sleep mode"))
    return tuple(terms)


def _recipe_checkpointing(mode: str | None) -> Checkpointing:
    match mode:
        case "full" | "selective":
            return mode
    return "none"


def _recipe_layout(recipe: Recipe, hardware: Hardware) -> ModelLayout:
    gpus = recipe.gpus or hardware.gpus
    tensor, pipeline, replicas = recipe.tensor_parallel or 1, recipe.pipeline_parallel or 1, recipe.replicas or 1
    shards = recipe.shards or max(1, gpus // (tensor * pipeline * replicas))
    sharding: Sharding
    match recipe.sharding:
        case "none" | "ddp" | "fsdp" | "zero1" | "zero2" | "zero3" | "device_map":
            sharding = recipe.sharding
        case _:
            sharding = "ddp" if gpus > 1 else "none"
    if sharding == "none":
        shards, replicas = 1, 1
    elif sharding == "ddp":
        shards, replicas = 1, max(replicas, gpus // (tensor * pipeline))
    return ModelLayout(
        sharding,
        shards,
        replicas,
        tensor,
        recipe.context_parallel or 1,
        recipe.expert_parallel or 1,
        pipeline,
        in_flight=min(pipeline, recipe.micro_batch or 1),
        reshards=pipeline == 1,  # a pipeline stage gathers its weights once for all micro-batches of a step
        ends_apart=bool(recipe.shards_ends) and sharding == "fsdp",
    )


def _recipe_numerics(recipe: Recipe, shape: ModelShape, table: dict[str, Any]) -> Numerics:
    """Bytes per number. PEFT trains fp32 adapters beside a 16-bit base; other programs use the base's type.

    DeepSpeed keeps fp32 masters and moments, and an fp32 gradient beside the 16-bit one for its update
    (ZeRO, arXiv 1910.02054, s. 3.1).
    """
    adapted, peft = recipe.adapter not in (None, "none"), table.get("adapters") == "peft"
    weight = _DTYPE_BYTES[recipe.weight_dtype or "bf16"]
    if adapted and peft:
        weight = 4.0 if recipe.weight_dtype is None else weight
    state = _state_bytes(recipe, shape, weight)
    compute = _DTYPE_BYTES[recipe.compute_dtype or "bf16"]
    deepspeed = recipe.sharding in ("zero1", "zero2", "zero3") or table.get("deepspeed")
    if deepspeed and not adapted and weight == 2:
        gradient = 2.0 if recipe.sharding == "zero3" else 6.0  # ZeRO-3 creates the fp32 gradient group by group
        gradient = 4.0 if table.get("main_gradients") else gradient
        return Numerics(2.0, 2.0, compute, gradient=gradient, reduce=2.0, state=8.0, master=4.0)
    keeps_16_bits = recipe.weight_dtype in ("bf16", "fp16")
    casts = bool(table.get("upcasts_ends")) and not keeps_16_bits
    upcast = recipe.quantization in ("nf4", "nf4-dq") and (casts or recipe.base_dtype == "fp32")
    return Numerics(
        weight,
        _DTYPE_BYTES[recipe.base_dtype or "bf16"] if adapted else weight,
        compute,
        gradient=weight,
        reduce=weight,
        state=state,
        quantized_ends=4.0 if upcast else 2.0,  # PEFT's prepare_model_for_kbit_training casts them to fp32
        quantizes_head=bool(table.get("quantizes_head")),
    )


def _state_bytes(recipe: Recipe, shape: ModelShape, weight: float) -> float:
    """Bytes of the optimizer's moments per trained number."""
    optimizer = recipe.optimizer or "adamw"
    each = _DTYPE_BYTES[recipe.optimizer_state_dtype or ("fp32" if weight == 4 else "bf16")]
    if "8bit" in optimizer:
        each = 1 + _SCALE_OF_8_BITS
    share = OPTIMIZERS.get(optimizer, 1.0)
    if optimizer == "muon" and recipe.adapter in (None, "none"):  # embedding and head have both moments
        ends = shape.vocab_size * shape.hidden_size * (1 if shape.tie_embeddings else 2) / shape.parameters
        share += (1 - share) * min(1.0, ends)
    return 2 * each * share


def _recipe_head(recipe: Recipe, tokens: int, shape: ModelShape) -> Head:
    match recipe.head:
        case "fused-loss":
            return Head("fused_loss")
        case "in-place":
            return Head("in_place")
        case "cce":  # blocks of logits in on-chip memory; arXiv 2411.09009, s. 4.2
            return Head("fused")
        case "liger":  # as many rows at once as make the logits as large as the hidden states; arXiv 2410.10989, s. 3.2
            parts = -(-shape.vocab_size // shape.hidden_size)
            return Head("fused", chunk_tokens=1 << max(0, (-(-tokens // parts) - 1).bit_length()))
        case "token-chunked":
            return Head("token_chunked", chunk_tokens=-(-tokens // (recipe.head_chunks or 8)))
        case "vocab-chunked":
            return Head("vocab_chunked", chunk_vocab=recipe.head_chunk_vocab or 8192)
    return Head("full")


def _recipe_adapter(recipe: Recipe, shape: ModelShape) -> AdapterSize | None:
    rank = recipe.adapter_rank or 8
    targets = recipe.adapter_targets or _USUAL_TARGETS.get(recipe.program or "", ("q_proj", "v_proj"))
    counted = recipe.adapter_parameters
    embeddings = bool(recipe.trains_embeddings)
    match recipe.adapter:
        case "lora" | "dora":
            outputs = adapted_outputs(shape, targets) if recipe.adapter == "dora" else 0
            numbers = lora_parameters(shape, rank, targets) + outputs * shape.layers if counted is None else counted
            return AdapterSize("lora", rank, numbers, 1, embeddings, outputs)
        case "adapter":
            return AdapterSize("adapter", 0, counted or 0, 1, embeddings)
        case "adapter-v2":
            return AdapterSize("adapter_v2", 0, counted or 0, 1, embeddings)
    return None
