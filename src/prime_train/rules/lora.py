"""LoRA adapters that would not be learnt, not be served, or cost more than they save. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from prime_train.findings import Problem, Severity
from prime_train.rules.base import rule
from prime_train.rules.sizes import sizes_of
from prime_train.spec import RunSpec

_LARGEST_RANK = 512  # vLLM, LoRAConfig.max_lora_rank
_OTHER_FAMILIES = ("query_key_value", "c_attn", "c_proj", "c_fc", "Wqkv", "W_pack", "dense_h_to_4h", "dense_4h_to_h")
_OURS = ("Qwen/", "meta-llama/", "PrimeIntellect/", "NousResearch/", "HuggingFaceTB/", "deepseek-ai/")


@rule("LOR001", Severity.WARNING)
def lora_with_cpu_offload(run: RunSpec) -> Iterator[Problem]:
    """LoRA and FSDP's CPU offload should not be combined.

    a frozen base has no gradients and no optimizer state to offload: its weights travel over the bus in every
    layer, and the copies cost more memory than they save

    Source: operators' runs of prime-rl with LoRA and fsdp_cpu_offload.

    Bad (prime-rl 2026-08):
        [trainer.model]
        fsdp_cpu_offload = true
        optim_cpu_offload = false
        [trainer.model.lora]
        rank = 16
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
    Good (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 16
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
    """
    if run.lora is not None and run.trainer is not None and run.trainer.fsdp_cpu_offload:
        yield Problem(
            "trainer.fsdp_cpu_offload",
            f"true, with an adapter of rank {run.lora.rank}",
            patch={"trainer.fsdp_cpu_offload": False},
        )


@rule("LOR002", Severity.NOTE)
def adapter_without_a_name(run: RunSpec) -> Iterator[Problem]:
    """An adapter should have a name.

    inference serves it under that name: a made-up one tells two runs on one server apart only by chance

    Source: prime-rl, orchestrator.model.lora.name.

    Bad (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 16
        [trainer.optim]
        lr = 1e-5
    Good (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 16
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
    """
    if run.lora is not None and run.rollout is not None and run.rollout.lora_name is None:
        yield Problem(
            "rollout.lora_name",
            "the adapter has no name",
            patch={"rollout.lora_name": f"r{run.lora.rank}" if run.lora.rank else "adapter"},
        )


@rule("LOR003", Severity.ERROR)
def rank_beyond_the_server(run: RunSpec) -> Iterator[Problem]:
    """The server must allow the adapter's rank.

    vLLM sizes its buffers by max_lora_rank and refuses an adapter beyond it at the first weight update

    Source: vLLM's "LoRA rank N is greater than max_lora_rank M"; LoRAConfig (at most 512).

    Bad (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 64
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
        [inference.vllm]
        max_lora_rank = 16
    Bad (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 1024
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
    Good (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 64
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
        [inference.vllm]
        max_lora_rank = 64
    """
    if run.lora is None or run.lora.rank is None or run.inference is None:
        return
    rank, limit = run.lora.rank, run.inference.max_lora_rank
    if rank > _LARGEST_RANK:
        yield Problem(
            "lora.rank",
            f"{rank} is more than vLLM's largest, {_LARGEST_RANK}",
            patch={"lora.rank": _LARGEST_RANK},
        )
    elif limit is not None and rank > limit:
        yield Problem(
            "inference.max_lora_rank",
            f"{limit} is less than `lora.rank` {rank}",
            patch={"inference.max_lora_rank": next(size for size in (8, 16, 32, 64, 128, 256, 512) if size >= rank)},
        )


@rule("LOR004", Severity.ERROR)
def lora_over_nccl(run: RunSpec) -> Iterator[Problem]:
    """An adapter goes to inference through the file system.

    NCCL broadcasts whole weights, an adapter is loaded from files: prime-rl refuses the combination

    Source: prime-rl's validator "LoRA requires filesystem weight broadcast".

    Bad (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 16
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
        [weight_broadcast]
        type = "nccl"
    Good (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 16
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
        [weight_broadcast]
        type = "filesystem"
    """
    if run.lora is not None and run.weight_broadcast is not None and run.weight_broadcast.kind in ("nccl", "nixl"):
        yield Problem(
            "weight_broadcast.kind",
            f'"{run.weight_broadcast.kind}", with an adapter of rank {run.lora.rank}',
            patch={"weight_broadcast.kind": "filesystem"},
        )


@rule("LOR005", Severity.ERROR)
def adapters_disagree(run: RunSpec) -> Iterator[Problem]:
    """Trainer and orchestrator must agree on rank and alpha.

    the orchestrator tells inference what it will load, and prime-rl refuses two answers

    Source: prime-rl's validator on LoRA rank and alpha.

    Bad (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 16
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
        rank = 8
    Good (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 16
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
        rank = 16
    """
    if run.lora is None or run.rollout is None:
        return
    for name, trained, told in (
        ("rank", run.lora.rank, run.rollout.lora_rank),
        ("alpha", run.lora.alpha, run.rollout.lora_alpha),
    ):
        if trained is not None and told is not None and trained != told:
            yield Problem(
                f"rollout.lora_{name}",
                f"{told:g} is not `lora.{name}` {trained:g}",
                patch={f"rollout.lora_{name}": trained},
            )


@rule("LOR006", Severity.ERROR)
def alpha_zero(run: RunSpec) -> Iterator[Problem]:
    """alpha = 0 switches the adapter off.

    the adapter's output is multiplied by alpha / rank: it changes nothing, and gets no gradient

    Source: LoRA, arXiv 2106.09685, s. 4.1.

    Bad (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 16
        alpha = 0.0
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
    Good (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 16
        alpha = 32.0
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
    """
    if run.lora is not None and run.lora.alpha == 0:
        yield Problem("lora.alpha", "0: the adapter has no effect", patch={"lora.alpha": 2.0 * (run.lora.rank or 16)})


@rule("LOR007", Severity.WARNING)
def whole_modules_beside_an_adapter(run: RunSpec) -> Iterator[Problem]:
    """modules_to_save cannot be served by vLLM.

    vLLM loads the low-rank part only: rollouts come from a model without the modules that were trained whole

    Source: vLLM's PEFT helper, "vLLM only supports modules_to_save being None".

    Bad (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 16
        modules_to_save = ["lm_head"]
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
    Good (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 16
        modules_to_save = []
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
    """
    if run.lora is not None and run.rollout is not None and run.lora.modules_to_save:
        yield Problem(
            "lora.modules_to_save",
            f"beside the adapter, whole modules are to be saved: {', '.join(run.lora.modules_to_save)}",
            fix="take it out",
            patch={"lora.modules_to_save": None},
        )


@rule("LOR008", Severity.WARNING)
def modules_of_another_architecture(run: RunSpec) -> Iterator[Problem]:
    """target_modules must be modules that the model has.

    a name that matches nothing gets no adapter: less is trained than was asked for

    Judged for the models of the registry, which are of the Llama and Qwen families.

    Source: module names of transformers' Llama, Qwen2 and Qwen3 against those of GPT-2, GPT-NeoX and Qwen-1.

    Bad (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 16
        target_modules = ["q_proj", "c_attn"]
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
    Good (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 16
        target_modules = ["q_proj", "v_proj"]
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
    """
    if run.lora is None or not run.lora.target_modules or run.trainer is None:
        return
    name = run.trainer.model_name or ""
    if sizes_of(name) is None or not name.startswith(_OURS):
        return
    foreign = [module for module in run.lora.target_modules if module in _OTHER_FAMILIES]
    if foreign:
        left = [module for module in run.lora.target_modules if module not in foreign]
        yield Problem(
            "lora.target_modules",
            f"{name} has no {', '.join(foreign)}",
            fix="" if left else "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
            patch={"lora.target_modules": left} if left else {},
        )


@rule("LOR009", Severity.NOTE)
def dropout_in_rl(run: RunSpec) -> Iterator[Problem]:
    """Dropout in an adapter makes trainer and inference disagree.

    inference samples without dropout: the importance ratio is then noise even for the policy that sampled

    Source: importance sampling of GRPO, arXiv 2402.03300, s. 4.1.

    Bad (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 16
        dropout = 0.1
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
    Good (prime-rl 2026-08):
        [trainer.model.lora]
        rank = 16
        dropout = 0.0
        [trainer.optim]
        lr = 1e-5
        [orchestrator.model.lora]
        name = "adapter"
    """
    if run.lora is not None and run.rollout is not None and run.lora.dropout:
        yield Problem("lora.dropout", f"{run.lora.dropout:g} in a run that samples", patch={"lora.dropout": 0.0})
