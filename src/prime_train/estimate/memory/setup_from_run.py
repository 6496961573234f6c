"""Resolves a RunSpec to everything that the memory of its training depends on. Pure; reads no file."""

from __future__ import annotations

from prime_train.config.prime_rl.features import features_of
from prime_train.config.prime_rl.schema import newest
from prime_train.estimate.memory.rl_terms import rl_terms
from prime_train.estimate.memory.sharding import ALL_LINEAR, lora_parameters
from prime_train.estimate.memory.train_setup import (
    Adapter,
    Checkpointing,
    Head,
    Layout,
    Numerics,
    Offload,
    Sharding,
    TrainSetup,
)
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.values import Hardware
from prime_train.spec import RunSpec
from prime_train.spec.prime_rl_parts import Recipe, Trainer

_DTYPE_BYTES = {"fp32": 4.0, "float32": 4.0, "bf16": 2.0, "bfloat16": 2.0, "fp16": 2.0, "float16": 2.0, "float8": 2.0}
_PEFT = ("hf", "ms-swift", "qwen-finetune", "trl", "axolotl", "llama-factory", "unsloth")  # use PEFT for adapters
_TILE_TOKENS = 8192  # prime-rl 2026-08's default of fused_lm_head_token_chunk_size


def setup_of(run: RunSpec, hardware: Hardware, shape: ModelShape) -> TrainSetup:
    """The training of `run` on `hardware`, by a recipe, prime-rl, or the bundled trainer."""
    if run.recipe is not None:
        return _of_recipe(run.recipe, hardware, shape)
    return _bundled(run, hardware, shape) if run.config_format == "run.toml" else _prime_rl(run, hardware, shape)


def _bundled(run: RunSpec, hardware: Hardware, shape: ModelShape) -> TrainSetup:
    """fp32 weights under autocast; DDP, FSDP2 or neither; its own cross-entropy. Source: prime_train/trainer."""
    bf16 = run.precision.compute != "fp32" and (hardware.compute_capability or (9, 0)) >= (8, 0)
    shards, processes = run.parallel.dp_shard, run.parallel.processes
    sharding: Sharding = "fsdp" if shards > 1 else "ddp" if processes > 1 else "none"
    numerics = Numerics(compute=2.0 if bf16 else 4.0, autocast=bf16 and sharding != "fsdp")
    return TrainSetup(
        program="bundled",
        era="",
        shape=shape,
        layout=Layout(sharding, shards=shards, replicas=max(1, processes // shards)),
        numerics=numerics,
        head=Head("in_place"),
        tokens=run.batch.micro_batch * run.data.ctx_tokens,
        ctx_tokens=run.data.ctx_tokens,
        micro_batches=max(1, run.global_batch // (run.batch.micro_batch * processes)),
        fused_optimizer=True,
        compiled=run.model.compile,
        attention="sdpa",
        adapter=_bundled_adapter(run, shape),
        beside=rl_terms(run, shape, numerics.compute),
        packed=not run.learns_from_rewards,  # rollouts are padded rows, which need no mask
    )


_MODULES = {  # model.lora.targets -> names in a Hugging Face folder
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "o_proj",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
}


def _bundled_adapter(run: RunSpec, shape: ModelShape) -> Adapter | None:
    lora = run.model.lora
    if lora is None:
        return None
    return Adapter("lora", lora.rank, lora_parameters(shape, lora.rank, [_MODULES[name] for name in lora.targets]))


def _prime_rl(run: RunSpec, hardware: Hardware, shape: ModelShape) -> TrainSetup:
    """prime-rl's trainer (`rl`, `trainer` or `sft`), with the defaults of the file's generation."""
    trainer, finetune = run.trainer or Trainer(), run.finetune
    context = trainer.context_parallel or 1
    ctx_tokens = (finetune and finetune.ctx_tokens) or trainer.ctx_tokens
    ctx_tokens = ctx_tokens or (run.rollout and run.rollout.ctx_tokens) or 2048
    micro_batch = (finetune.micro_batch_sequences if finetune else None) or 1
    gpus = _train_gpus(run, hardware)
    return TrainSetup(
        program="prime-rl",
        era=(run.launch.generation if run.launch else None) or newest(),
        shape=shape,
        layout=_prime_rl_layout(trainer, gpus),
        numerics=_prime_rl_numerics(trainer),
        head=_prime_rl_head(run, trainer),
        tokens=-(-micro_batch * ctx_tokens // context),
        ctx_tokens=ctx_tokens,
        micro_batches=_prime_rl_micro_batches(run, gpus // context, micro_batch),
        checkpointing=_prime_rl_checkpointing(trainer),
        offload=Offload(
            optimizer=bool(trainer.optim_cpu_offload or trainer.fsdp_cpu_offload),
            parameters=bool(trainer.fsdp_cpu_offload),
            activations=bool(trainer.activation_offloading),
            in_flight=trainer.offload_inflight or 5,
        ),
        adapter=_prime_rl_adapter(run, shape, trainer),
        compiled=bool(trainer.compile),
        attention=trainer.attention or "",
    )


def _train_gpus(run: RunSpec, hardware: Hardware) -> int:
    deployment = run.deployment
    if deployment is None:
        return hardware.gpus
    nodes = deployment.train_nodes or 1
    return deployment.train_gpus or (nodes * deployment.gpus_per_node if deployment.gpus_per_node else hardware.gpus)


def _prime_rl_layout(trainer: Trainer, gpus: int) -> Layout:
    tensor, replicas = trainer.tensor_parallel or 1, trainer.dp_replicate or 1
    return Layout(
        "fsdp",
        shards=max(1, gpus // (replicas * tensor)),
        replicas=replicas,
        tensor=tensor,
        context=trainer.context_parallel or 1,
        expert=trainer.expert_parallel or 1,
        reshards=trainer.reshard_after_forward is not False,
    )


def _prime_rl_numerics(trainer: Trainer) -> Numerics:
    # The default is float32. The schema reports a type that prime-rl does not have, and it counts as the default here.
    weight = _DTYPE_BYTES.get(trainer.optimization_dtype or "", 4.0)
    reduce = _DTYPE_BYTES.get(trainer.reduce_dtype or "", 4.0)
    states = {"sgd": 0.5, "sign_sgd": 0.0, "muon": 1.0}.get(trainer.optimizer or "adamw", 2.0)
    return Numerics(weight=weight, base=weight, gradient=weight, reduce=reduce, state=states * weight)


def _prime_rl_head(run: RunSpec, trainer: Trainer) -> Head:
    """RL chunks the head by its generation's default. SFT computes all logits unless its config sets other chunks."""
    is_sft, tokens = run.finetune is not None, trainer.head_chunk_tokens
    if tokens and not (is_sft and tokens == _TILE_TOKENS):
        return Head("tiled", chunk_tokens=tokens)
    chunk_vocab = trainer.head_chunk_vocab or (0 if is_sft else features_of(run).head_chunk_vocab)
    return Head("vocab_chunked", chunk_vocab=chunk_vocab) if chunk_vocab else Head("full")


def _prime_rl_micro_batches(run: RunSpec, data_parallel: int, micro_batch: int) -> int:
    """Micro-batches of a step: counted for `sft`; two for RL, because rollouts are packed into several."""
    if run.finetune is None or run.finetune.batch_sequences is None:
        return 2
    return max(1, run.finetune.batch_sequences // max(1, micro_batch * data_parallel))


def _prime_rl_checkpointing(trainer: Trainer) -> Checkpointing:
    if not (trainer.activation_checkpointing or trainer.activation_offloading):
        return "none"
    return "selective" if trainer.checkpointing_mode == "selective" else "full"


def _prime_rl_adapter(run: RunSpec, shape: ModelShape, trainer: Trainer) -> Adapter | None:
    if run.lora is None:
        return None
    rank = run.lora.rank or 16
    targets = run.lora.target_modules or ALL_LINEAR
    return Adapter("lora", rank, lora_parameters(shape, rank, targets), trainer.max_concurrent_runs or 1)


def _of_recipe(recipe: Recipe, hardware: Hardware, shape: ModelShape) -> TrainSetup:
    """A published or custom trainer; unset fields get the defaults of the Hugging Face Trainer."""
    ctx_tokens, context = recipe.ctx_tokens or 2048, recipe.context_parallel or 1
    sequences, stages = recipe.micro_batch or 1, recipe.pipeline_parallel or 1
    piped = -(-sequences // stages)  # a pipeline splits the batch into one part per stage
    tokens = -(-piped * ctx_tokens // context)
    return TrainSetup(
        program=recipe.program or "hf",
        era="",
        shape=shape,
        layout=_recipe_layout(recipe, hardware),
        numerics=_recipe_numerics(recipe),
        head=_recipe_head(recipe, tokens),
        tokens=tokens,
        ctx_tokens=ctx_tokens,
        micro_batches=recipe.micro_batches_per_step or 1,
        checkpointing=_recipe_checkpointing(recipe.activation_checkpointing),
        optimizer=recipe.optimizer or "adamw",
        optimizer_in_backward=bool(recipe.optimizer_in_backward),
        fused_optimizer=recipe.program in ("torchtitan", "torchtune", "litgpt"),
        offload=Offload(
            optimizer=bool(recipe.optimizer_offload),
            parameters=bool(recipe.parameter_offload),
            activations=bool(recipe.activation_offloading),
        ),
        adapter=_recipe_adapter(recipe, shape),
        quantization=recipe.quantization or "",
        compiled=bool(recipe.compile),
        attention=recipe.attention or "",
    )


def _recipe_checkpointing(mode: str | None) -> Checkpointing:
    match mode:
        case "full" | "selective":
            return mode
    return "none"


def _recipe_layout(recipe: Recipe, hardware: Hardware) -> Layout:
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
    return Layout(
        sharding,
        shards,
        replicas,
        tensor,
        recipe.context_parallel or 1,
        recipe.expert_parallel or 1,
        pipeline,
        in_flight=min(pipeline, recipe.micro_batch or 1),
        reshards=pipeline == 1,  # a pipeline stage gathers its weights once for all micro-batches of a step
    )


def _recipe_numerics(recipe: Recipe) -> Numerics:
    """Bytes per number. PEFT trains fp32 adapters beside a 16-bit base; other programs use the base's type.

    DeepSpeed keeps fp32 masters and moments, and an fp32 gradient beside the 16-bit one for its update
    (ZeRO, arXiv 1910.02054, s. 3.1).
    """
    adapted = recipe.adapter not in (None, "none")
    weight = _DTYPE_BYTES[recipe.weight_dtype or ("fp32" if adapted and recipe.program in _PEFT else "bf16")]
    state = 2 * _DTYPE_BYTES[recipe.optimizer_state_dtype or ("fp32" if weight == 4 else "bf16")]
    if recipe.optimizer == "adamw-8bit":
        state = 2 * (1 + 4 / 256)  # a byte each, and an fp32 scale for 256; arXiv 2110.02861, s. 2
    elif recipe.optimizer == "sgd":
        state = 0.0
    compute = _DTYPE_BYTES[recipe.compute_dtype or "bf16"]
    deepspeed = recipe.sharding in ("zero1", "zero2", "zero3") or recipe.program == "qwen-finetune"
    if deepspeed and not adapted and weight == 2:
        gradient = 2.0 if recipe.sharding == "zero3" else 6.0  # ZeRO-3 creates the fp32 gradient group by group
        return Numerics(2.0, 2.0, compute, gradient=gradient, reduce=2.0, state=8.0, master=4.0)
    upcast = recipe.quantization in ("nf4", "nf4-dq") and recipe.program in _PEFT
    return Numerics(
        weight,
        2.0 if adapted else weight,
        compute,
        gradient=weight,
        reduce=weight,
        state=state,
        quantized_ends=4.0 if upcast else 2.0,  # PEFT's prepare_model_for_kbit_training casts them to fp32
    )


def _recipe_head(recipe: Recipe, tokens: int) -> Head:
    match recipe.head:
        case "token-chunked":
            return Head("token_chunked", chunk_tokens=-(-tokens // (recipe.head_chunks or 8)))
        case "vocab-chunked":
            return Head("vocab_chunked", chunk_vocab=recipe.head_chunk_vocab or 8192)
    return Head("full")


def _recipe_adapter(recipe: Recipe, shape: ModelShape) -> Adapter | None:
    rank, targets = recipe.adapter_rank or 8, recipe.adapter_targets or ("q_proj", "v_proj")
    counted = recipe.adapter_parameters
    embeddings = bool(recipe.trains_embeddings)
    match recipe.adapter:
        case "lora":
            numbers = lora_parameters(shape, rank, targets) if counted is None else counted
            return Adapter("lora", rank, numbers, 1, embeddings)
        case "adapter":
            return Adapter("adapter", 0, counted or 0, 1, embeddings)
        case "adapter-v2":
            return Adapter("adapter_v2", 0, counted or 0, 1, embeddings)
    return None
