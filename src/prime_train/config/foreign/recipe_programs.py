"""Completes the fields of a recipe where a table is not enough: one function for each program. Pure.

A function takes the fields of the table, the layout, and the number of GPUs (None: not known), and returns the fields
that it adds or replaces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, NamedTuple

from prime_train.config.foreign.recipe_fields import Fields, Found, mapping_of
from prime_train.config.foreign.recipe_layout import Beside, Layout, layout_of, types_of
from prime_train.config.foreign.values import ForeignPart, Open

Changes = dict[str, Found]


class ForeignTraining(NamedTuple):
    """What is known of a training: the part of its trainer, that part's fields, and what is beside it."""

    part: ForeignPart
    fields: Fields
    beside: Beside
    gpus: int | None

    def value(self, name: str, default: Any = None) -> Any:
        """The value of a field; the default if there is none, or if it is not known."""
        value = self.fields.get(name, Found(None)).value
        return default if value is None or isinstance(value, Open) else value

    def is_open(self, *names: str) -> bool:
        return any(isinstance(self.fields.get(name, Found(None)).value, Open) for name in names)

    @property
    def ranks(self) -> int | None:
        """GPUs, or groups of them, that train on different sequences."""
        if self.gpus is None or self.is_open("tensor_parallel", "pipeline_parallel", "context_parallel"):
            return None
        names = ("tensor_parallel", "pipeline_parallel", "context_parallel")
        width = 1
        for name in names:
            width *= self.value(name, 1)
        return max(1, self.gpus // width)

    def accumulation(self, sequences: str = "global_batch", micro: str = "micro_batch") -> Changes:
        """The micro-batches of a step, from the sequences of a step over all GPUs."""
        batch = self.fields.get(sequences)
        if batch is None:
            return {}
        if self.is_open(sequences, micro):
            return {"micro_batches_per_step": Found(Open(f"{batch.key} / micro-batch"), batch.key)}
        if self.ranks is None:
            return {"micro_batches_per_step": Found(Open(f"{batch.key} = {batch.value} over all GPUs"), batch.key)}
        count = max(1, round(batch.value / (self.value(micro, 1) * self.ranks)))
        return {"micro_batches_per_step": Found(count, batch.key, batch.written)}


def complete(training: ForeignTraining) -> Changes:
    """The fields that the functions of the program add. `fields` of the result replace those of the table."""
    return _PROGRAMS[training.part.format](training)


def _of_trainer(training: ForeignTraining, **replaced: Found) -> Changes:
    """A trainer on top of accelerate: its layout, and the types that follow. `replaced` are its own fields."""
    accelerate = training.beside.accelerate or {}
    fields: dict[str, Found] = {**training.fields, **replaced}
    compute = next(
        (one["compute_dtype"] for one in (training.beside.deepspeed or {}, accelerate) if "compute_dtype" in one), None
    )
    if compute is not None and not fields["compute_dtype"].written:
        fields["compute_dtype"] = compute
    layout: Layout = layout_of(fields, training.beside, training.gpus, training.part.format)
    found = dict(layout.fields)
    found.pop("optimizer", None)  # the Trainer has its own beside that of a DeepSpeed file
    optimizer = layout.fields.get("optimizer")
    if optimizer is not None and optimizer.written:
        found["optimizer"] = optimizer
    kept = {"compute_dtype": fields["compute_dtype"], **replaced}
    return kept | found | types_of(fields, layout.engine)


def _axolotl(training: ForeignTraining) -> Changes:
    compute = training.fields["compute_dtype"]
    loads = {"float8": "bf16"}.get(training.value("compute_dtype", "bf16"), training.value("compute_dtype", "bf16"))
    why = "axolotl loads weights in the type of the computation"
    found = _of_trainer(training, loads=Found(loads, compute.key, compute.written, why))
    if "micro_batches_per_step" in training.fields:
        return found
    batch = training.fields.get("rank_batch")
    if batch is None:
        return found | {"micro_batches_per_step": Found(1, "gradient_accumulation_steps", written=False)}
    if training.is_open("rank_batch", "micro_batch"):
        return found | {"micro_batches_per_step": Found(Open(f"{batch.key} / micro_batch_size"), batch.key)}
    return found | {"micro_batches_per_step": Found(max(1, batch.value // training.value("micro_batch", 1)), batch.key)}


def _llama_factory(training: ForeignTraining) -> Changes:
    compute = training.fields["compute_dtype"]
    kind = {"float8": "bf16"}.get(training.value("compute_dtype", "fp32"), training.value("compute_dtype", "fp32"))
    if training.value("adapter") != "none" or training.value("pure"):
        loads = Found(kind, compute.key, compute.written, "the base has the type of the computation")
    else:
        loads = Found(
            "fp32", "pure_bf16", written=False, why="LLaMA-Factory casts trained weights to fp32 unless pure_bf16"
        )
    head = training.fields["head"]
    if head.value == "liger" and training.value("objective") != "sft":
        head = Found("full", head.key, why="the fused loss is that of fine-tuning only")
    found = _of_trainer(training, loads=loads, head=head)
    if training.part.format == "llama-factory-v1":
        found |= training.accumulation() or {"micro_batches_per_step": Found(1, "global_batch_size", written=False)}
    return found | _quantization(training, training.value("double_quantization", True))


def _quantization(training: ForeignTraining, double: bool) -> Changes:
    found = training.fields.get("quantization")
    if found is None or found.value not in ("nf4", "nf4-dq"):
        return {}
    return {"quantization": found._replace(value="nf4-dq" if double else "nf4")}


_TRL_METHOD = re.compile(r"\b(?:trl|scripts)[ /](sft|dpo|grpo|kto)(?:_\w+)?(?:\.py)?\b")
_OPENRLHF_METHOD = re.compile(r"\bopenrlhf[./]cli[./]train_(\w+)")
_GRPO_KEYS = ("num_generations", "reward_funcs", "max_completion_length", "reward_model_name_or_path")
_DPO_KEYS = ("precompute_ref_log_probs", "ref_model_init_kwargs", "sync_ref_model", "reference_free")
_DPO_LOSSES = frozenset(
    ("sigmoid", "hinge", "ipo", "apo_zero", "robust", "bco_pair", "sppo_hard", "exo_pair", "nca_pair")
)


def _named_method(part: ForeignPart, pattern: re.Pattern[str]) -> str:
    """The method in the name of the script that a text starts; "" if it names none, or several."""
    named = set(pattern.findall(part.document.text))
    return named.pop() if len(named) == 1 else ""


def _trl(training: ForeignTraining) -> Changes:
    values = training.part.values
    is_grpo = any(values.get(key) is not None for key in _GRPO_KEYS)
    asked = _named_method(training.part, _TRL_METHOD)
    is_dpo = (
        asked in ("dpo", "kto")
        or any(values.get(key) is not None for key in _DPO_KEYS)
        or str(values.get("loss_type")) in _DPO_LOSSES
    )
    objective = "grpo" if is_grpo or "grpo" in asked else "dpo" if is_dpo else "sft"
    fields: Changes = {"objective": Found(objective, "the keys of the file")}
    if objective == "sft":
        fields["head"] = training.fields.get("head") or Found(
            "token-chunked", "loss_type", written=False, why="nll before TRL 1.7"
        )
    else:
        head = training.fields.get("head")
        fields["head"] = (
            head if head is not None and head.value == "liger" else Found("full", "use_liger_kernel", written=False)
        )
    if objective == "grpo":
        fields |= _grpo(training)
    fields |= _quantization(training, training.value("double_quantization", False))
    return _of_trainer(training, **fields)


def _grpo(training: ForeignTraining) -> Changes:
    prompt, answer = training.fields.get("prompt_tokens"), training.fields.get("answer_tokens")
    found: Changes = {}
    if training.is_open("prompt_tokens", "answer_tokens"):
        found["ctx_tokens"] = Found(Open("max_prompt_length + max_completion_length"), "max_completion_length")
    else:
        tokens = training.value("prompt_tokens", 512) + training.value("answer_tokens", 512)
        written = prompt is not None and answer is not None
        found["ctx_tokens"] = Found(tokens, "max_prompt_length + max_completion_length", written)
    try:
        weight = float(training.value("reference_weight", 0))
    except (TypeError, ValueError):
        weight = 0.0
    found["reference_model"] = Found(weight > 0 and training.value("adapter") == "none", "beta")
    return found | _engine(training)


def _engine(training: ForeignTraining) -> Changes:
    """The share of the GPU that a vLLM beside the trainer keeps during a step."""
    if str(training.value("vllm", "false")).lower() != "true" or training.value("vllm_mode") != "colocate":
        return {}
    if str(training.value("vllm_sleeps", "false")).lower() not in ("false", "0"):
        return {}
    share = training.fields["engine_share"]
    return {"engine_memory_fraction": share}


def _hf(training: ForeignTraining) -> Changes:
    loads = training.fields.get("loads")
    if loads is None:
        why = "the type of the checkpoint, here bf16, as transformers 5 loads it; the script may set another one"
        loads = Found("bf16", "dtype of from_pretrained", written=False, why=why)
    fields = dict(training.fields)
    ctx_tokens = fields.get("ctx_tokens") or Found(Open("the script sets the length"), "max_length")
    return _of_trainer(training, loads=loads, ctx_tokens=ctx_tokens)


_SWIFT_BATCH = 16  # sequences of a step, if the file does not set the accumulation; swift/trainers/arguments.py:285


def _ms_swift(training: ForeignTraining) -> Changes:
    fields = training.fields
    ctx_tokens = fields.get("ctx_tokens") or Found(Open("max_length is not set: the model's own maximum"), "max_length")
    found = _of_trainer(training, ctx_tokens=ctx_tokens, loads=fields["loads"])
    if training.value("objective") == "grpo":
        found |= _engine(training)
    if "micro_batches_per_step" in fields:
        return found
    steps = Found(Open("16 sequences over all GPUs"), "gradient_accumulation_steps")
    if training.gpus is not None and not training.is_open("micro_batch"):
        count = max(1, ceil(_SWIFT_BATCH / (training.value("micro_batch", 1) * training.gpus)))
        steps = steps._replace(value=count, written=False)
    return found | {"micro_batches_per_step": steps}


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
    script = _named_method(training.part, _OPENRLHF_METHOD)
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


def _deepspeed(training: ForeignTraining) -> Changes:
    """A DeepSpeed file alone: the script has the model and the lengths. Two of its three batches give the third."""
    compute = training.fields.get("compute_dtype")
    kind = "fp32" if compute is None else training.value("compute_dtype", "bf16")
    found: Changes = {
        "compute_dtype": compute or Found("fp32", "bf16.enabled", written=False),
        "weight_dtype": Found(kind, compute.key if compute else "bf16.enabled", compute is not None),
        "ctx_tokens": Found(Open("the script sets the length"), ""),
        "adapter": Found("none", "", written=False),
    }
    if "micro_batch" not in training.fields:
        found["micro_batch"] = Found(Open("the script sets it"), "train_micro_batch_size_per_gpu")
    if "micro_batches_per_step" not in training.fields:
        after = training._replace(fields={**training.fields, **found})
        found |= after.accumulation() or {
            "micro_batches_per_step": Found(Open("the script sets it"), "gradient_accumulation_steps")
        }
    return found


def _accelerate(training: ForeignTraining) -> Changes:
    """An accelerate file alone: the script that it starts has the rest."""
    names = {
        "micro_batch": "per_device_train_batch_size",
        "micro_batches_per_step": "gradient_accumulation_steps",
        "ctx_tokens": "max_length",
    }
    script = {name: Found(Open("the script sets it"), key) for name, key in names.items()}
    kind = training.fields.get("compute_dtype") or Found("fp32", "mixed_precision", written=False)
    loads = Found("bf16", "", written=False, why="the type of the checkpoint, here bf16")
    adapter = Found("none", "", written=False)
    training = training._replace(fields={**training.fields, "adapter": adapter, "compute_dtype": kind})
    return _of_trainer(training, loads=loads, adapter=adapter, **script)


_PROGRAMS: Mapping[str, Callable[[ForeignTraining], Changes]] = {
    "axolotl": _axolotl,
    "llama-factory": _llama_factory,
    "llama-factory-v1": _llama_factory,
    "trl": _trl,
    "hf": _hf,
    "ms-swift": _ms_swift,
    "verl": _verl,
    "openrlhf": _openrlhf,
    "torchtitan": _torchtitan,
    "torchtune": _torchtune,
    "megatron": _megatron,
    "deepspeed": _deepspeed,
    "accelerate": _accelerate,
}
FORMATS = tuple(_PROGRAMS)
