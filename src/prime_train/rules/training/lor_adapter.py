"""LoRA settings with which an adapter does not learn, or costs more than it saves. Pure."""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.model.model_sizes import sizes_of
from prime_train.rules.rule import Problems, must_agree, rule, suggest
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of

_FOREIGN_MODULES = ("query_key_value", "c_attn", "c_proj", "c_fc", "Wqkv", "W_pack", "dense_h_to_4h", "dense_4h_to_h")
_JUDGED_OWNERS = ("Qwen/", "meta-llama/", "PrimeIntellect/", "NousResearch/", "HuggingFaceTB/", "deepseek-ai/")


@rule("LOR001", Severity.WARNING)
def lora_with_cpu_offload(run: RunSpec) -> Problems:
    """LoRA and FSDP's CPU offload should not be combined.

    a frozen base has no gradients and no optimizer state to offload: its weights travel over the bus in every
    layer, and the copies cost more memory than they save

    Source: operators' runs of prime-rl with LoRA and fsdp_cpu_offload.

    Bad (prime-rl 2026-08 lora):
        [trainer.model]
        fsdp_cpu_offload = true
        optim_cpu_offload = false
    Good (prime-rl 2026-08 lora):
        [trainer.model.lora]
        rank = 16
    """
    parts = prime_rl_of(run)
    if parts.lora is not None and parts.trainer is not None and parts.trainer.fsdp_cpu_offload:
        yield suggest("trainer.fsdp_cpu_offload", f"true, with an adapter of rank {parts.lora.rank}", False)


@rule("LOR006", Severity.ERROR)
def alpha_zero(run: RunSpec) -> Problems:
    """alpha = 0 switches the adapter off.

    the adapter's output is multiplied by alpha / rank: it changes nothing, and gets no gradient

    Source: LoRA, arXiv 2106.09685, s. 4.1.

    Bad (prime-rl 2026-08 lora):
        [trainer.model.lora]
        alpha = 0.0
    Good (prime-rl 2026-08 lora):
        [trainer.model.lora]
        alpha = 32.0
    """
    parts = prime_rl_of(run)
    if parts.lora is not None and parts.lora.alpha == 0:
        yield suggest("lora.alpha", "0: the adapter has no effect", 2.0 * (parts.lora.rank or 16))


@rule("LOR008", Severity.WARNING)
def modules_of_another_architecture(run: RunSpec) -> Problems:
    """target_modules must be modules that the model has.

    a name that matches no module gets no adapter: less is trained than configured

    Judged for the models of the registry, which are of the Llama and Qwen families.

    Source: module names of transformers' Llama, Qwen2 and Qwen3 against those of GPT-2, GPT-NeoX and Qwen-1.

    Bad (prime-rl 2026-08 lora):
        [trainer.model.lora]
        target_modules = ["q_proj", "c_attn"]
    Good (prime-rl 2026-08 lora):
        [trainer.model.lora]
        target_modules = ["q_proj", "v_proj"]
    """
    parts = prime_rl_of(run)
    if parts.lora is None or not parts.lora.target_modules or parts.trainer is None:
        return
    name = parts.trainer.model_name or ""
    if sizes_of(name) is None or not name.startswith(_JUDGED_OWNERS):
        return
    foreign = [module for module in parts.lora.target_modules if module in _FOREIGN_MODULES]
    if foreign:
        left = [module for module in parts.lora.target_modules if module not in foreign]
        yield Problem(
            "lora.target_modules",
            f"{name} has no {', '.join(foreign)}",
            fix="" if left else "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
            patch={"lora.target_modules": left} if left else {},
        )


@rule("LOR009", Severity.NOTE)
def dropout_in_rl(run: RunSpec) -> Problems:
    """Dropout in an adapter makes trainer and inference disagree.

    inference samples without dropout, so the importance ratio is noisy even for the policy that sampled

    Source: importance sampling of GRPO, arXiv 2402.03300, s. 4.1.

    Bad (prime-rl 2026-08 lora):
        [trainer.model.lora]
        dropout = 0.1
    Good (prime-rl 2026-08 lora):
        [trainer.model.lora]
        dropout = 0.0
    """
    parts = prime_rl_of(run)
    if parts.lora is not None and parts.rollout is not None and parts.lora.dropout:
        yield suggest("lora.dropout", f"{parts.lora.dropout:g} in a run that samples", 0.0)


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
    parts = prime_rl_of(run)
    if parts.lora is not None and parts.rollout is not None and parts.rollout.lora_name is None:
        yield suggest(
            "rollout.lora_name", "the adapter has no name", f"r{parts.lora.rank}" if parts.lora.rank else "adapter"
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
    parts = prime_rl_of(run)
    if parts.lora is None or parts.lora.rank is None or run.inference is None:
        return
    rank, limit = parts.lora.rank, run.inference.max_lora_rank
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
    parts = prime_rl_of(run)
    broadcast = parts.weight_broadcast
    if parts.lora is None or broadcast is None:
        return
    kinds = {at: getattr(broadcast, at) for at in ("kind", "trainer_kind", "rollout_kind", "inference_kind")}
    patch = {f"weight_broadcast.{at}": "filesystem" for at, kind in kinds.items() if kind in ("nccl", "nixl")}
    at = next((at for at in ("kind", "trainer_kind") if f"weight_broadcast.{at}" in patch), None)
    if at is not None:
        what = f'"{kinds[at]}", with an adapter of rank {parts.lora.rank}'
        yield Problem(f"weight_broadcast.{at}", what, patch=patch)


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
    parts = prime_rl_of(run)
    if parts.lora is not None and parts.rollout is not None and parts.lora.modules_to_save:
        yield suggest(
            "lora.modules_to_save",
            f"beside the adapter, whole modules are to be saved: {', '.join(parts.lora.modules_to_save)}",
            None,
            fix="take it out",
        )
