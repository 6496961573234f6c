"""Completes the fields of a training on top of accelerate where a table is not enough: one function for each program.

Pure.

A function returns the fields that it adds to those of the table, or that replace them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import ceil

from prime_train.config.foreign.recipe.fields import Found
from prime_train.config.foreign.recipe.layout import Layout, layout_of, types_of
from prime_train.config.foreign.recipe.training import Changes, ForeignTraining, named_method
from prime_train.config.foreign.values import Open


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
    types = types_of(fields, layout.engine)
    return kept | found | types | _computes_as_loaded(fields["compute_dtype"], types)


def _computes_as_loaded(compute: Found, types: Changes) -> Changes:
    """The type of products without mixed precision: that of the weights."""
    weights = types.get("weight_dtype") or types["base_dtype"]
    if compute.value != "fp32" or weights.value not in ("bf16", "fp16"):
        return {}
    return {"compute_dtype": compute._replace(value=weights.value, why="that of the weights: mixed precision is off")}


def _loaded_for_computation(training: ForeignTraining, why: str) -> Found:
    """The type of loaded weights where it is that of the computation. Products in float8 cast weights in bf16."""
    compute, kind = training.fields["compute_dtype"], training.value("compute_dtype", "bf16")
    return Found("bf16" if kind == "float8" else kind, compute.key, compute.written, why)


def _axolotl(training: ForeignTraining) -> Changes:
    loads = _loaded_for_computation(training, "axolotl loads weights in the type of the computation")
    found = _of_trainer(training, loads=loads)
    if "micro_batches_per_step" in training.fields:
        return found
    batch = training.fields.get("rank_batch")
    if batch is None:
        return found | {"micro_batches_per_step": Found(1, "gradient_accumulation_steps", written=False)}
    if training.is_open("rank_batch", "micro_batch"):
        return found | {"micro_batches_per_step": Found(Open(f"{batch.key} / micro_batch_size"), batch.key)}
    return found | {"micro_batches_per_step": Found(max(1, batch.value // training.value("micro_batch", 1)), batch.key)}


def _llama_factory(training: ForeignTraining) -> Changes:
    if training.value("adapter") != "none" or training.value("pure"):
        loads = _loaded_for_computation(training, "LLaMA-Factory loads weights in the type of the computation")
    else:
        why = "LLaMA-Factory casts trained weights to fp32 unless pure_bf16"
        loads = Found("fp32", "pure_bf16", written=False, why=why)
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
_GRPO_KEYS = ("num_generations", "reward_funcs", "max_completion_length", "reward_model_name_or_path")
_DPO_KEYS = ("precompute_ref_log_probs", "ref_model_init_kwargs", "sync_ref_model", "reference_free")
_DPO_LOSSES = frozenset(
    ("sigmoid", "hinge", "ipo", "apo_zero", "robust", "bco_pair", "sppo_hard", "exo_pair", "nca_pair")
)


def _trl(training: ForeignTraining) -> Changes:
    values = training.part.values
    is_grpo = any(values.get(key) is not None for key in _GRPO_KEYS)
    asked = named_method(training.part, _TRL_METHOD)
    is_dpo = (
        asked in ("dpo", "kto")
        or any(values.get(key) is not None for key in _DPO_KEYS)
        or str(values.get("loss_type")) in _DPO_LOSSES
    )
    objective = "grpo" if is_grpo or "grpo" in asked else "dpo" if is_dpo else "sft"
    fields: Changes = {"objective": Found(objective, "the keys of the file"), "head": _trl_head(training, objective)}
    if objective == "grpo":
        fields |= _grpo(training)
    quantized = _quantization(training, training.value("double_quantization", False))
    found = _of_trainer(training, **fields, **quantized)
    if quantized or training.value("quantization") == "int8":
        why = "TRL casts the adapters of a quantised base to bf16"
        found["weight_dtype"] = Found("bf16", "load_in_4bit", written=False, why=why)
    return found


def _trl_head(training: ForeignTraining, objective: str) -> Found:
    """The loss of fine-tuning is computed in chunks; that of preferences and rewards needs each log-probability."""
    head = training.fields.get("head")
    if objective == "sft":
        return head or Found("token-chunked", "loss_type", written=False, why="nll before TRL 1.7")
    if head is not None and head.value == "liger":
        return head
    return Found("full", "use_liger_kernel", written=False)


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
    # An engine that sleeps frees its memory while the trainer works.
    if str(training.value("vllm_sleeps", "false")).lower() not in ("false", "0"):
        return {}
    return {"engine_memory_fraction": training.fields["engine_share"]}


def _hf(training: ForeignTraining) -> Changes:
    loads = training.fields.get("loads")
    if loads is None:
        why = "the type of the checkpoint, here bf16, as transformers 5 loads it; the script may set another one"
        loads = Found("bf16", "dtype of from_pretrained", written=False, why=why)
    fields = dict(training.fields)
    ctx_tokens = fields.get("ctx_tokens") or Found(Open("the script sets the length"), "max_length")
    adapter = fields["adapter"]
    adapter = adapter if adapter.written else adapter._replace(why="unless the script makes an adapter")
    quantized = _quantization(training, training.value("double_quantization", False))
    return _of_trainer(training, loads=loads, ctx_tokens=ctx_tokens, adapter=adapter, **quantized)


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


PROGRAMS: Mapping[str, Callable[[ForeignTraining], Changes]] = {
    "axolotl": _axolotl,
    "llama-factory": _llama_factory,
    "llama-factory-v1": _llama_factory,
    "trl": _trl,
    "hf": _hf,
    "ms-swift": _ms_swift,
    "deepspeed": _deepspeed,
    "accelerate": _accelerate,
}
