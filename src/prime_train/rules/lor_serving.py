"""LoRA adapters that inference cannot load as the trainer writes them. Pure."""

from __future__ import annotations

from prime_train.core.findings import Severity
from prime_train.rules.rule import Problems, must_agree, rule, suggest
from prime_train.spec import RunSpec

_LARGEST_RANK = 512  # vLLM, LoRAConfig.max_lora_rank


@rule("LOR002", Severity.NOTE)
def adapter_without_a_name(run: RunSpec) -> Problems:
    """An adapter should have a name.

    inference serves the adapter under its name, and the generated names of two runs on one server may be equal

    Source: prime-rl, orchestrator.model.lora.name.

    Bad (prime-rl 2026-08 lora):
        [orchestrator.model]
        lora = "-"
    Good (prime-rl 2026-08 lora):
        [orchestrator.model.lora]
        name = "adapter"
    """
    if run.lora is not None and run.rollout is not None and run.rollout.lora_name is None:
        yield suggest(
            "rollout.lora_name", "the adapter has no name", f"r{run.lora.rank}" if run.lora.rank else "adapter"
        )


@rule("LOR003", Severity.ERROR)
def rank_beyond_the_server(run: RunSpec) -> Problems:
    """The server must allow the adapter's rank.

    vLLM sizes its buffers by max_lora_rank and refuses an adapter beyond it at the first weight update

    Source: vLLM's "LoRA rank N is greater than max_lora_rank M"; LoRAConfig (at most 512).

    Bad (prime-rl 2026-08 lora):
        [trainer.model.lora]
        rank = 64
        [inference.vllm]
        max_lora_rank = 16
    Bad (prime-rl 2026-08 lora):
        [trainer.model.lora]
        rank = 1024
    Good (prime-rl 2026-08 lora):
        [trainer.model.lora]
        rank = 64
        [inference.vllm]
        max_lora_rank = 64
    """
    if run.lora is None or run.lora.rank is None or run.inference is None:
        return
    rank, limit = run.lora.rank, run.inference.max_lora_rank
    if rank > _LARGEST_RANK:
        yield suggest("lora.rank", f"{rank} is more than vLLM's largest, {_LARGEST_RANK}", _LARGEST_RANK)
    elif limit is not None and rank > limit:
        yield suggest(
            "inference.max_lora_rank",
            f"{limit} is less than `lora.rank` {rank}",
            next(size for size in (8, 16, 32, 64, 128, 256, 512) if size >= rank),
        )


@rule("LOR004", Severity.ERROR)
def lora_over_nccl(run: RunSpec) -> Problems:
    """An adapter goes to inference through the file system.

    NCCL broadcasts whole weights, an adapter is loaded from files: prime-rl refuses the combination

    Source: prime-rl's validator "LoRA requires filesystem weight broadcast".

    Bad (prime-rl 2026-08 lora):
        [weight_broadcast]
        type = "nccl"
    Bad (prime-rl 2026-01):
        [trainer.model.lora]
        rank = 16
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
        [trainer.weight_broadcast]
        type = "nccl"
        [orchestrator.weight_broadcast]
        type = "nccl"
    Good (prime-rl 2026-08 lora):
        [weight_broadcast]
        type = "filesystem"
    """
    broadcast = run.weight_broadcast
    if run.lora is None or broadcast is None:
        return
    for at, kind in (("kind", broadcast.kind), ("trainer_kind", broadcast.trainer_kind)):
        if kind in ("nccl", "nixl"):
            yield suggest(f"weight_broadcast.{at}", f'"{kind}", with an adapter of rank {run.lora.rank}', "filesystem")


@rule("LOR005", Severity.ERROR)
def adapters_disagree(run: RunSpec) -> Problems:
    """Trainer and orchestrator must agree on rank and alpha.

    the orchestrator announces rank and alpha to inference: prime-rl refuses values that differ

    Source: prime-rl's validator on LoRA rank and alpha.

    Bad (prime-rl 2026-08 lora):
        [orchestrator.model.lora]
        rank = 8
    Good (prime-rl 2026-08 lora):
        [orchestrator.model.lora]
        rank = 16
    """
    yield from must_agree(run, "rollout.lora_rank", "lora.rank")
    yield from must_agree(run, "rollout.lora_alpha", "lora.alpha")


@rule("LOR007", Severity.WARNING)
def whole_modules_beside_an_adapter(run: RunSpec) -> Problems:
    """modules_to_save cannot be served by vLLM.

    vLLM loads the low-rank part only: rollouts come from a model without the modules that were trained whole

    Source: vLLM's PEFT helper, "vLLM only supports modules_to_save being None".

    Bad (prime-rl 2026-08 lora):
        [trainer.model.lora]
        modules_to_save = ["lm_head"]
    Good (prime-rl 2026-08 lora):
        [trainer.model.lora]
        modules_to_save = []
    """
    if run.lora is not None and run.rollout is not None and run.lora.modules_to_save:
        yield suggest(
            "lora.modules_to_save",
            f"beside the adapter, whole modules are to be saved: {', '.join(run.lora.modules_to_save)}",
            None,
            fix="take it out",
        )
