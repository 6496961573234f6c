"""Resolves a RunSpec to everything that the memory of its training depends on. Pure; reads no file."""

from __future__ import annotations

import math
from collections.abc import Iterator

from prime_train.config.prime_rl.schema import features_of, newest
from prime_train.estimate.memory.setup_from_recipe import setup_of_recipe
from prime_train.estimate.memory.sharding import ALL_LINEAR, groups_of, lora_parameters
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
from prime_train.spec import Rl, RunSpec
from prime_train.spec.answers import global_batch, policy_of, prime_rl_of, rollout_engine
from prime_train.spec.clip_size import ClipSize, size_of
from prime_train.spec.decoder_size import CHUNKED_FROM_VOCAB, rows_of_chunk, rows_of_logprobs
from prime_train.spec.prime_rl_parts import Trainer

_WEIGHT_BYTES = 4.0
_REFERENCE = "prime_train/trainer/rl/loss.py"
_ENGINE = "prime_train/trainer/rl/engines/local_engine.py"
_SETS = 2  # of weights and of slots: answers that began before an update are completed beside those after it
_UNREAD_TOKENS = 7  # that a slot holds beyond the context, because the host reads the tokens of 8 steps together
_PADDED_TOKENS = 64  # the positions of a slot are a multiple of it


def rl_terms(run: RunSpec, shape: ModelShape, number_bytes: float) -> tuple[Term, ...]:
    """The reference model and the trainer's own engine, on each GPU; none for a run without rewards.

    `number_bytes` is the size of a number of the engine.
    """
    policy = policy_of(run)
    return () if policy is None else tuple(_list_terms(run, policy, shape, number_bytes))


def _list_terms(run: RunSpec, policy: Rl, shape: ModelShape, number_bytes: float) -> Iterator[Term]:
    if policy.kl_coef:
        parts = max(1, run.parallel.dp_shard)
        formula = f"{shape.parameters / 1e6:.1f} M x {_WEIGHT_BYTES:g} B / {parts}"
        yield Term("reference model", shape.parameters * _WEIGHT_BYTES / parts, formula, _REFERENCE)
    if rollout_engine(run) == "local":
        yield _weights_term(shape, number_bytes)
        yield _cache_term(run, policy, shape, number_bytes)


def _weights_term(shape: ModelShape, number_bytes: float) -> Term:
    """Embedding in fp32, and everything else in the engine's type, the head also where it is tied to the embedding."""
    groups = groups_of(shape)
    blocks = groups.total - groups.embedding - groups.head
    others = blocks + groups.root
    size = _SETS * (groups.embedding * _WEIGHT_BYTES + others * number_bytes)
    embedding = f"{groups.embedding / 1e6:.1f} M x {_WEIGHT_BYTES:g} B"
    return Term(
        "engine's weights", size, f"{_SETS} x ({embedding} + {others / 1e6:.1f} M x {number_bytes:g} B)", _ENGINE
    )


def _cache_term(run: RunSpec, policy: Rl, shape: ModelShape, number_bytes: float) -> Term:
    slot = math.ceil((run.data.ctx_tokens + _UNREAD_TOKENS) / _PADDED_TOKENS) * _PADDED_TOKENS
    tokens = _SETS * policy.concurrency * slot
    each = 2 * shape.layers * shape.kv_heads * shape.head_dim * number_bytes
    return Term("engine's KV cache", tokens * each, f"{tokens:,} tokens x {each:g} B", _ENGINE)


_DTYPE_BYTES = {"float32": 4.0, "bfloat16": 2.0}
# Generations of prime-rl; a constant names the first one that does it.
_MOST_AUTO_EXPERT_PARALLEL = 8
_USES_EXPERT_PARALLEL_SINCE = "2026-08"  # model.ep = "auto" (#2868)
_UPDATES_ONE_BY_ONE_SINCE = "2026-08"  # AdamW(fused=False) turns foreach off too (#3234): no copy of all gradients
_FINETUNE_IN_CHUNKS_SINCE = "2026-08"  # one loss for SFT and RL (#3044)


def setup_of(run: RunSpec, hardware: Hardware, shape: ModelShape) -> TrainSetup:
    """The training of `run` on `hardware`, by a recipe, prime-rl, or the bundled trainer."""
    if run.recipe is not None:
        return setup_of_recipe(run.recipe, hardware, shape)
    return _bundled(run, hardware, shape) if run.prime_rl is None else _prime_rl(run, hardware, shape)


def _bundled(run: RunSpec, hardware: Hardware, shape: ModelShape) -> TrainSetup:
    """fp32 weights under autocast; DDP, FSDP2 or neither; its own cross-entropy. Source: prime_train/trainer."""
    bf16 = run.precision.compute != "fp32" and (hardware.compute_capability or (9, 0)) >= (8, 0)
    shards, processes = run.parallel.dp_shard, run.parallel.processes
    sharding: Sharding = "fsdp" if shards > 1 else "ddp" if processes > 1 else "none"
    numerics = Numerics(
        compute=2.0 if bf16 else 4.0, autocast=bf16 and sharding != "fsdp", state=_bundled_state_bytes(run, shape)
    )
    clip = size_of(run.audio) if run.audio is not None else ClipSize(1, run.data.ctx_tokens)
    return TrainSetup(
        program="bundled",
        era="",
        shape=shape,
        layout=ModelLayout(
            sharding, shards=shards, replicas=max(1, processes // shards), reshards=run.parallel.reshard
        ),
        numerics=numerics,
        head=_bundled_head(run, shape),
        tokens=run.batch.micro_batch * clip.all_tokens,
        ctx_tokens=clip.tokens,
        micro_batches=max(1, global_batch(run) // (run.batch.micro_batch * processes)),
        checkpointing=run.model.recompute,
        checkpoint_every=run.model.recompute_every,
        reduces_last=sharding == "fsdp" and run.parallel.reduce == "last",
        fused_optimizer=True,
        compiled=run.model.compile,
        attention="sdpa",
        adapter=_bundled_adapter(run, shape),
        beside=rl_terms(run, shape, numerics.compute),
        packed=policy_of(run) is None and run.audio is None,  # rollouts are padded rows
        audio=run.audio,
    )


def _bundled_head(run: RunSpec, shape: ModelShape) -> Head:
    """The loss on a GPU. Source: trainer/model/head_loss.py; rewards are learnt from log-probabilities."""
    if run.audio is not None:
        return Head("objective")
    if policy_of(run) is not None:
        return Head("logprobs", chunk_tokens=rows_of_logprobs(shape.vocab_size))
    if shape.vocab_size < CHUNKED_FROM_VOCAB:
        return Head("in_place")
    return Head("in_chunks", chunk_tokens=rows_of_chunk(run.batch.micro_batch * run.data.ctx_tokens))


def _bundled_state_bytes(run: RunSpec, shape: ModelShape) -> float:
    """Bytes of the optimizers' state per trained number: two fp32 moments; Muon's matrices have one. DiLoCo adds one.

    The gains of norms in the blocks count as matrices, because they are less than a thousandth of a block. Experts
    do not, because they are stacked.
    Source: trainer/muon.py; trainer/replicas/rounds.py.
    """
    outer = 4.0 if run.parallel.sync_every and run.parallel.sync == "diloco" else 0.0
    if run.optim.kind == "adamw":
        return 8.0 + outer
    if run.model.lora is not None:
        return 4.0 + outer
    groups = groups_of(shape)
    experts = groups.experts * (shape.layers - shape.dense_layers)
    return outer + 8.0 - 4.0 * max(0.0, groups.total - groups.embedding - groups.head - experts) / groups.total


_MODULES = {  # model.lora.targets -> names in a Hugging Face folder
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "o_proj",
    "gate": "gate_proj",
    "up": "up_proj",
    "down": "down_proj",
}


def _bundled_adapter(run: RunSpec, shape: ModelShape) -> AdapterSize | None:
    lora = run.model.lora
    if lora is None:
        return None
    return AdapterSize("lora", lora.rank, lora_parameters(shape, lora.rank, [_MODULES[name] for name in lora.targets]))


def _prime_rl(run: RunSpec, hardware: Hardware, shape: ModelShape) -> TrainSetup:
    """prime-rl's trainer (`rl`, `trainer` or `sft`), with the defaults of the file's generation."""
    parts = prime_rl_of(run)
    trainer, finetune = parts.trainer or Trainer(), parts.finetune
    context = trainer.context_parallel or 1
    ctx_tokens = (finetune and finetune.ctx_tokens) or trainer.ctx_tokens
    ctx_tokens = ctx_tokens or (parts.rollout and parts.rollout.ctx_tokens) or 2048
    micro_batch = (finetune.micro_batch_sequences if finetune else None) or 1
    gpus = _train_gpus(run, hardware)
    return TrainSetup(
        program="prime-rl",
        era=parts.launch.month or parts.launch.generation or newest(),
        shape=shape,
        layout=_prime_rl_layout(trainer, gpus, _usual_expert_parallel(run, trainer, gpus, shape)),
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
        fused_optimizer=(trainer.optimizer or "adamw") == "adamw" and _is_from(run, _UPDATES_ONE_BY_ONE_SINCE),
        compiled=bool(trainer.compile),
        attention=trainer.attention or "",
    )


def _train_gpus(run: RunSpec, hardware: Hardware) -> int:
    deployment = prime_rl_of(run).deployment
    if deployment is None:
        return hardware.gpus
    return deployment.all_train_gpus or deployment.gpus_per_node or hardware.gpus


def _usual_expert_parallel(run: RunSpec, trainer: Trainer, gpus: int, shape: ModelShape) -> int:
    """What "auto" means, the default of 2026-08: the GPUs of one copy, at most eight.

    Source: prime-rl parallel_dims.py, resolve_ep.
    """
    if not shape.is_moe or not _is_from(run, _USES_EXPERT_PARALLEL_SINCE):
        return 1
    return min(_MOST_AUTO_EXPERT_PARALLEL, max(1, gpus // (trainer.dp_replicate or 1)))


def _is_from(run: RunSpec, generation: str) -> bool:
    """Whether prime-rl is of that generation or a later one."""
    return (prime_rl_of(run).launch.generation or newest()) >= generation


def _prime_rl_layout(trainer: Trainer, gpus: int, usual_expert_parallel: int) -> ModelLayout:
    tensor, replicas = trainer.tensor_parallel or 1, trainer.dp_replicate or 1
    return ModelLayout(
        "fsdp",
        shards=max(1, gpus // (replicas * tensor)),
        replicas=replicas,
        tensor=tensor,
        context=trainer.context_parallel or 1,
        expert=trainer.expert_parallel or usual_expert_parallel,
        reshards=trainer.reshard_after_forward is not False,
    )


def _prime_rl_numerics(trainer: Trainer) -> Numerics:
    # The default is float32. The schema reports a type that prime-rl does not have, and it counts as the default here.
    weight = _DTYPE_BYTES.get(trainer.optimization_dtype or "", 4.0)
    reduce = _DTYPE_BYTES.get(trainer.reduce_dtype or "", 4.0)
    states = {"sgd": 0.5, "sign_sgd": 0.0, "muon": 1.0}.get(trainer.optimizer or "adamw", 2.0)
    return Numerics(weight=weight, base=weight, gradient=weight, reduce=reduce, state=states * weight)


def _prime_rl_head(run: RunSpec, trainer: Trainer) -> Head:
    """RL chunks the head by its generation's default, and so does SFT from 2026-08 on; before, SFT made all logits.

    Source: prime-rl sft/train.py: with a number in fused_lm_head_token_chunk_size the loss is that of the RL trainer,
    although the description of the key says that SFT does not use it.
    """
    is_sft, tokens = prime_rl_of(run).finetune is not None, trainer.head_chunk_tokens
    if tokens and (not is_sft or _is_from(run, _FINETUNE_IN_CHUNKS_SINCE)):
        return Head("tiled", chunk_tokens=tokens)
    chunk_vocab = trainer.head_chunk_vocab or (0 if is_sft else features_of(run).head_chunk_vocab)
    return Head("vocab_chunked", chunk_vocab=chunk_vocab) if chunk_vocab else Head("full")


def _prime_rl_micro_batches(run: RunSpec, data_parallel: int, micro_batch: int) -> int:
    """Micro-batches of a step: counted for `sft`; two for RL, because rollouts are packed into several."""
    parts = prime_rl_of(run)
    if parts.finetune is None or parts.finetune.batch_sequences is None:
        return 2
    return max(1, parts.finetune.batch_sequences // max(1, micro_batch * data_parallel))


def _prime_rl_checkpointing(trainer: Trainer) -> Checkpointing:
    if not (trainer.activation_checkpointing or trainer.activation_offloading):
        return "none"
    return "selective" if trainer.checkpointing_mode == "selective" else "full"


def _prime_rl_adapter(run: RunSpec, shape: ModelShape, trainer: Trainer) -> AdapterSize | None:
    parts = prime_rl_of(run)
    if parts.lora is None:
        return None
    rank = parts.lora.rank or 16
    targets = parts.lora.target_modules or ALL_LINEAR
    return AdapterSize("lora", rank, lora_parameters(shape, rank, targets), trainer.max_concurrent_runs or 1)
