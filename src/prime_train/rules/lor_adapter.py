"""LoRA settings with which an adapter does not learn, or costs more than it saves. Pure."""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.model_sizes import sizes_of
from prime_train.rules.rule import Problems, rule, suggest
from prime_train.spec import RunSpec

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
    if run.lora is not None and run.trainer is not None and run.trainer.fsdp_cpu_offload:
        yield suggest("trainer.fsdp_cpu_offload", f"true, with an adapter of rank {run.lora.rank}", False)


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
    if run.lora is not None and run.lora.alpha == 0:
        yield suggest("lora.alpha", "0: the adapter has no effect", 2.0 * (run.lora.rank or 16))


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
    if run.lora is None or not run.lora.target_modules or run.trainer is None:
        return
    name = run.trainer.model_name or ""
    if sizes_of(name) is None or not name.startswith(_JUDGED_OWNERS):
        return
    foreign = [module for module in run.lora.target_modules if module in _FOREIGN_MODULES]
    if foreign:
        left = [module for module in run.lora.target_modules if module not in foreign]
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
    if run.lora is not None and run.rollout is not None and run.lora.dropout:
        yield suggest("lora.dropout", f"{run.lora.dropout:g} in a run that samples", 0.0)
