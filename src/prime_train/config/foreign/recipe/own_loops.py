"""Completes the fields of programs with a loop of their own where a table is not enough: a function each. Pure.

A function returns the fields that it adds to those of the table, or that replace them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from prime_train.config.foreign.recipe.fields import Found, mapping_of
from prime_train.config.foreign.recipe.training import Changes, ForeignTraining, named_method
from prime_train.config.foreign.values import Open

_OPENRLHF_METHOD = re.compile(r"\bopenrlhf[./]cli[./]train_(\w+)")


def _verl(training: ForeignTraining) -> Changes:
    fields = training.fields
    is_policy = "policy_model" in fields or "estimator" in fields
    found: Changes = {"objective": Found("grpo" if is_policy else "sft", "algorithm.adv_estimator")}
    rank = fields.get("adapter_rank")
    found["adapter"] = Found(
        "lora" if rank is not None else "none",
        rank.key if rank else "actor_rollout_ref.model.lora_rank",
        rank is not None,
    )
    if rank is not None:
        found["base_dtype"] = fields["weight_dtype"]
    if is_policy:
        prompt, answer = fields["prompt_tokens"], fields["answer_tokens"]
        is_open = training.is_open("prompt_tokens", "answer_tokens")
        tokens = Open(f"{prompt.key} + {answer.key}") if is_open else prompt.value + answer.value
        found["ctx_tokens"] = Found(tokens, f"{prompt.key} + {answer.key}", prompt.written and answer.written)
    elif "ctx_tokens" not in fields:
        found["ctx_tokens"] = Found(1024, "data.max_length", written=False)
    after = training._replace(fields={**fields, **found})
    found |= _verl_micro_batch(after, is_policy)
    after = training._replace(fields={**fields, **found})
    if is_policy and not training.is_open("mini_batch", "answers"):
        prompts, answers = fields["mini_batch"], fields["answers"]
        sequences = Found(prompts.value * answers.value, f"{prompts.key} x {answers.key}", prompts.written)
        after = after._replace(fields={**after.fields, "global_batch": sequences})
    found |= after.accumulation()
    if is_policy:
        found |= _verl_beside(training, is_full=rank is None)
    return found


def _verl_micro_batch(training: ForeignTraining, is_policy: bool) -> Changes:
    """The micro-batch; a dynamic one has as many tokens as the file allows."""
    dynamic, written = str(training.value("dynamic", "false")).lower() == "true", training.fields.get("micro_batch")
    if not dynamic:
        default = (
            Found(Open("it is not set"), "ppo_micro_batch_size_per_gpu")
            if is_policy
            else Found(4, "data.micro_batch_size_per_gpu", written=False)
        )
        return {"micro_batch": written or default}
    tokens = training.fields["dynamic_tokens"]
    if training.is_open("dynamic_tokens", "ctx_tokens"):
        return {"micro_batch": Found(Open(f"{tokens.key} / length"), tokens.key)}
    why = f"{tokens.value} tokens at once"
    return {
        "micro_batch": Found(max(1, tokens.value // training.value("ctx_tokens", 1)), tokens.key, tokens.written, why)
    }


def _verl_beside(training: ForeignTraining, *, is_full: bool) -> Changes:
    has_reference = any(str(training.value(name, "false")).lower() == "true" for name in ("kl_loss", "kl_reward"))
    found: Changes = {"reference_model": Found(has_reference and is_full, "use_kl_loss")}
    if str(training.value("frees_cache")).lower() == "false":
        found["engine_memory_fraction"] = training.fields["engine_share"]
    if training.value("estimator", "gae") == "gae":
        found["critic"] = Found(Open("a critic is trained beside the actor"), "algorithm.adv_estimator")
    return found


_STAGES = {0: "ddp", 1: "zero1", 2: "zero2", 3: "zero3"}


def _openrlhf(training: ForeignTraining) -> Changes:
    fields, rank = training.fields, training.fields.get("adapter_rank")
    script = named_method(training.part, _OPENRLHF_METHOD)
    is_policy = "ppo" in script or "prompt_tokens" in fields or "engines" in fields
    stage = str(fields["stage"].value)
    found: Changes = {
        "objective": Found("grpo" if is_policy else "dpo" if "dpo" in script else "sft", "the command"),
        "adapter": Found("lora" if rank else "none", rank.key if rank else "ds.lora.rank", rank is not None),
        "sharding": fields["stage"]._replace(
            value=_STAGES.get(int(stage) if stage.isdigit() else -1, Open(f"zero_stage = {stage}"))
        ),
    }
    if "micro_batch" not in fields:
        found["micro_batch"] = Found(1 if is_policy else 8, "train.micro_batch_size", written=False)
    if is_policy and "prompt_tokens" in fields and not training.is_open("prompt_tokens", "answer_tokens"):
        tokens = training.value("prompt_tokens", 1024) + training.value("answer_tokens", 1024)
        found["ctx_tokens"] = Found(tokens, "data.prompt_max_len + data.generate_max_len", "answer_tokens" in fields)
    elif "ctx_tokens" not in fields:
        found["ctx_tokens"] = Found(2048, "data.max_len", written=False)
    if is_policy and training.value("colocated") and not training.value("engine_sleeps") and training.value("engines"):
        found["engine_memory_fraction"] = fields["engine_share"]
    return found | training._replace(fields={**fields, **found}).accumulation()


def _torchtitan(training: ForeignTraining) -> Changes:
    fields, models = training.fields, mapping_of("torchtitan")["models"]
    named, by_function = _titan_name(training), training.fields.get("config_function")
    found: Changes = {"model_name": Found(models.get(named, Open(named or "no model.flavor")), "model.flavor")}
    for name, key in (("micro_batch", "training.local_batch_size"), ("ctx_tokens", "training.seq_len")):
        if by_function is not None and not fields.get(name, Found(None, written=False)).written:
            found[name] = Found(Open(f"the function {by_function.value} sets it"), key)
    tokens = fields.get("rank_tokens")
    after = training._replace(fields={**fields, **found})
    if tokens is not None and not after.is_open("rank_tokens", "ctx_tokens"):
        found["micro_batch"] = Found(max(1, tokens.value // training.value("ctx_tokens", 1)), tokens.key)
    elif "micro_batch" not in {**fields, **found}:
        found["micro_batch"] = Found(8, "training.local_batch_size", written=False)
    if by_function is not None:
        why = "the functions of --config compute the loss in chunks"
        found["head"] = Found("token-chunked", "config", written=False, why=why)
    converters = training.fields.get("converters")
    if converters is not None and "float8" in str(converters.value):
        found["compute_dtype"] = Found("float8", converters.key)
    shard = fields.get("shard_degree")
    if training.gpus == 1:
        found["sharding"] = Found("none", "", written=False, why="one GPU")
    elif shard is not None and shard.value == 1:
        found["sharding"] = Found("ddp", shard.key)
    elif shard is not None and not isinstance(shard.value, Open):
        found["shards"] = Found(shard.value * training.value("context_parallel", 1), shard.key)
    after = training._replace(fields={**fields, **found})
    return found | (
        after.accumulation() or {"micro_batches_per_step": Found(1, "training.global_batch_size", written=False)}
    )


def _titan_name(training: ForeignTraining) -> str:
    """The model in the words of the table: "llama3 8B", from its name and flavor or from a function llama3_8b."""
    name, flavor = training.value("name", ""), training.value("flavor", "")
    function = training.value("config_function")
    if not flavor and isinstance(function, str):
        name, flavor = name or function.partition("_")[0], function.removeprefix(f"{name}_").partition("_")[0]
    models = mapping_of("torchtitan")["models"]
    return next((one for one in models if one.lower() == f"{name} {flavor}".lower()), f"{name} {flavor}".strip())


_TUNE_TARGETS = {"output_proj": "o_proj"}


def _torchtune(training: ForeignTraining) -> Changes:
    component = str(training.value("component", "")).removeprefix("torchtune.models.")
    family, _, builder = component.partition(".")
    method = next((word for word in ("qlora", "lora") if builder.startswith(f"{word}_")), "")
    base = f"{family}.{builder.removeprefix(f'{method}_')}"
    key = "model._component_"
    found: Changes = {
        "model_name": Found(mapping_of("torchtune")["models"].get(base, Open(component or "no model")), key),
        "adapter": Found(("dora" if training.value("dora") else "lora") if method else "none", key),
    }
    if method == "qlora":
        found["quantization"] = Found("nf4-dq", key)
    if method:
        found |= {"adapter_targets": Found(_tune_targets(training), "model.lora_attn_modules")}
    if training.value("activation_checkpointing") == "full" and training.value("ac_mode") == "selective":
        found["activation_checkpointing"] = Found("selective", "ac_mode")
    if "ctx_tokens" not in training.fields:
        found["ctx_tokens"] = Found(
            Open("tokenizer.max_seq_len is not set: the longest sample"), "tokenizer.max_seq_len"
        )
    if training.gpus is not None:
        found["sharding"] = Found(
            "fsdp" if training.gpus > 1 else "none", "", written=False, why="by the number of GPUs"
        )
    epochs, steps = training.value("epochs"), training.value("epoch_steps")
    if epochs and steps:
        found["max_steps"] = Found(epochs * steps, "epochs x max_steps_per_epoch")
    return found


def _tune_targets(training: ForeignTraining) -> tuple[str, ...]:
    names = [_TUNE_TARGETS.get(name, name) for name in training.value("attention_targets", ("q_proj", "v_proj"))]
    if str(training.value("adapts_mlp", "false")).lower() == "true":
        names += ["gate_proj", "up_proj", "down_proj"]
    if str(training.value("adapts_head", "false")).lower() == "true":
        names.append("lm_head")
    return tuple(names)


def _megatron(training: ForeignTraining) -> Changes:
    """bf16 weights have fp32 masters and fp32 gradients: the estimate of the program adds them."""
    compute = training.value("compute_dtype", "fp32")
    weight = Found(
        compute if compute in ("bf16", "fp16") else "fp32",
        "bf16",
        why="with fp32 masters and gradients" if compute != "fp32" else "",
    )
    micro = training.fields.get("micro_batch") or Found(Open("it is not set"), "micro_batch_size")
    ctx_tokens = training.fields.get("ctx_tokens") or Found(Open("it is not set"), "seq_length")
    return {"weight_dtype": weight, "micro_batch": micro, "ctx_tokens": ctx_tokens} | training.accumulation()


PROGRAMS: Mapping[str, Callable[[ForeignTraining], Changes]] = {
    "verl": _verl,
    "openrlhf": _openrlhf,
    "torchtitan": _torchtitan,
    "torchtune": _torchtune,
    "megatron": _megatron,
}
