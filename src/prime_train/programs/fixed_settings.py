"""Lists the settings of a run.toml that may not change between the attempts of a run, each with its reason. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields, replace
from typing import Any

from prime_train.spec import RunSpec
from prime_train.spec.answers import global_batch, policy_of
from prime_train.spec.rl import TaskSource
from prime_train.supervise.launch.run_directory import ChangedValue

_DATA_ORDER = "it decides what each step reads"
_CLIPS = "it decides the spectrograms of each step"
_TASK_ORDER = "it decides the tasks of each step"
_WEIGHTS = "it decides the shape of the weights in the checkpoints"
_FIXED: tuple[tuple[str, str], ...] = (
    ("run.kind", "the checkpoints belong to another kind of run"),
    ("run.seed", _DATA_ORDER),
    *((f"model.{name}", _WEIGHTS) for name in ("path", "init", "init_from", "init_step", "init_optimizer")),
    *((f"model.{name}", _WEIGHTS) for name in ("layers", "hidden_size", "heads", "kv_heads", "head_dim")),
    *((f"model.{name}", _WEIGHTS) for name in ("mlp_size", "tie_embeddings", "qk_norm", "pad_vocab")),
    *((f"model.{name}", _WEIGHTS) for name in ("expert_mlp_size", "experts", "experts_per_token")),
    *((f"model.{name}", _WEIGHTS) for name in ("shared_experts", "router")),
    *((f"model.{name}", "the weights were trained with it") for name in ("rope_theta", "norm_eps", "lora")),
    *((f"data.{name}", _DATA_ORDER) for name in ("sources", "sampling_probs", "ctx_tokens", "pack_buffer_docs")),
    ("data.sampling_unit", _DATA_ORDER),
    ("data.document_start", "the weights were trained on documents that begin with it"),
    *((f"tokenizer.{name}", "the weights were trained on its tokens") for name in ("path", "vocab_size")),
    *((f"audio.{name}", _WEIGHTS) for name in ("objective", "classes", "encoder", "masked_autoencoder", "lejepa")),
    *((f"audio.{name}", _CLIPS) for name in ("audio_field", "label_field", "multi_label", "block_shuffle")),
    *((f"audio.{name}", _CLIPS) for name in ("clip_s", "seek", "sample_rate", "frames", "mels", "mean", "std")),
    ("batch.global_batch", f"{_DATA_ORDER}; a config without the key takes it from `batch.micro_batch`"),
    *((f"batch.{name}", _DATA_ORDER) for name in ("start_batch", "ramp_steps")),
    ("tasks", _TASK_ORDER),
    ("rl.warmup_steps", _TASK_ORDER),
    ("rl.group_size", "the checkpoint holds finished rollouts in groups of this size"),
    ("rl.kl_coef", "the reference model is that of the first RL step, and only a run that began with one has it"),
    ("optim.kind", "the checkpoints hold the states of its optimizer"),
    ("eval.held_out_ratio", "what the run learns from would be held out, or the reverse"),
)


def list_changes(before: RunSpec, after: RunSpec) -> Iterator[ChangedValue]:
    """Every setting that is not listed may change.

    These are max_steps, optim, schedule, parallel, checkpoint, eval, prime_train, inference, and what [rl] has for
    sampling, loss and limits.

    Optimizer settings and the schedule are functions of the step: a change counts from the next attempt on.
    """
    old, new = _flatten(before), _flatten(after)
    changed = ((name, old.get(name), new.get(name), why) for name, why in _FIXED)
    yield from (ChangedValue(name, was, value, why) for name, was, value, why in changed if was != value)


def _flatten(run: RunSpec) -> dict[str, Any]:
    """Dotted names to values, two levels deep. The global batch is one value for all three ways to set it."""
    tables: dict[str, Any] = {name: table for name, table in asdict(run).items() if isinstance(table, dict)}
    tables.pop("rl", None)  # a run of another kind does not use it
    values = {f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()}
    values |= {"batch.global_batch": global_batch(run), "data.sources": _describe(run.data.sources)}
    lora = run.model.lora
    values["model.lora"] = None if lora is None else _describe((lora,))
    policy = policy_of(run)
    learns_from_tasks = policy is not None or any(source.kind == "demonstrations" for source in run.data.sources)
    values["tasks"] = _describe(replace(task, **_MAY_CHANGE) for task in run.tasks) if learns_from_tasks else ""
    if policy is not None:
        values |= {"rl.warmup_steps": policy.warmup_steps, "rl.group_size": policy.group_size}
        values["rl.kl_coef"] = "above 0" if policy.kl_coef else "0"
    return values


_TASK = TaskSource(kind="reverse-text")
_MAY_CHANGE: dict[str, Any] = {name: getattr(_TASK, name) for name in ("python", "max_turns", "limit_s")}


def _describe(values: Iterable[Any]) -> str:
    """Each dataclass as its fields that differ from their defaults."""
    return "; ".join(map(_describe_one, values))


def _describe_one(value: Any) -> str:
    given = ((item, getattr(value, item.name)) for item in fields(value))
    return ", ".join(f"{item.name} {setting!r}" for item, setting in given if setting != item.default) or "defaults"
