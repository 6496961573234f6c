"""Builds the RunSpec of a prime-rl file, and the key map of its fields. Judges nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prime_train.config.prime_rl.field_values import FieldSource, read_fields, split_mark
from prime_train.spec import ENDLESS_STEPS, Checkpoint, Data, Optim, Run, RunSpec, Schedule, prime_rl_parts
from prime_train.toml.document import value_at

_KINDS = {"linear": "wsd", "cosine": "cosine", "constant": "constant"}
_ALGORITHMS = {"rl": "grpo"}
_UNNAMED = "run"  # prime-rl chooses a name if the file has none
_PARTS: dict[str, Any] = {
    "launch": prime_rl_parts.LaunchPart,
    "saving": prime_rl_parts.Saving,
    "deployment": prime_rl_parts.Deployment,
    "trainer": prime_rl_parts.Trainer,
    "finetune": prime_rl_parts.Finetune,
    "lora": prime_rl_parts.Lora,
    "rollout": prime_rl_parts.RolloutPart,
    "evaluation": prime_rl_parts.OnlineEvaluation,
    "weight_broadcast": prime_rl_parts.WeightBroadcast,
    "transport": prime_rl_parts.Transport,
    "monitor": prime_rl_parts.Monitor,
}
# The file of a single component has no table for the component: the whole file is that table.
_IS_ROOT = {"rollout": "orchestrator", "inference": "inference"}


def run_of(source: FieldSource) -> tuple[RunSpec, dict[str, str]]:
    """(the RunSpec, RunSpec field -> key) of a file."""
    feeds = source.generation.feeds.get(source.root, {})
    keys, known = read_fields(source)
    name = _typed("str | None", known.get("run.name")) or _UNNAMED
    run = RunSpec(
        format="prime-rl",
        run=Run(name=name, max_steps=int(_number(known.get("run.max_steps"), ENDLESS_STEPS))),
        data=Data(sources=()),
        optim=_optim(known),
        schedule=_schedule(known),
        checkpoint=_checkpoint(known),
        inference=_part(source, feeds, known, "inference"),
        prime_rl=prime_rl_parts.PrimeRl(
            resume=_resume(source, known),
            environments=_environments(source, feeds, keys),
            **{part: _part(source, feeds, known, part) for part in _PARTS},
        ),
    )
    return run, keys


# --- parts ---------------------------------------------------------------------------------------


def _part(source: FieldSource, feeds: Mapping[str, list[str]], known: Mapping[str, Any], part: str) -> Any:
    """A part of the RunSpec that run.toml does not have; None if this run does not have it either."""
    is_root = _IS_ROOT.get(part) == source.root
    if part in feeds and not is_root and known.get(part) is None:
        return None
    if not is_root and not _is_fed(feeds, part):
        return None
    cls = prime_rl_parts.Inference if part == "inference" else _PARTS[part]
    fields = {name: _typed(hint, known.get(f"{part}.{name}")) for name, hint in cls.__annotations__.items()}
    if part == "rollout" and "rollout.algorithm" not in feeds:
        fields["algorithm"] = "grpo"  # the only objective of a generation without a key for it
    elif part == "rollout":
        fields["algorithm"] = _ALGORITHMS.get(str(fields["algorithm"]), fields["algorithm"])
    elif part == "launch":
        fields["generation"] = source.generation.name
    elif part == "trainer" and "finetune.data_name" in feeds:
        fields["fake_data"] = value_at(source.values, ("data", "type")) == "fake"
    return cls(**fields)


def _is_fed(feeds: Mapping[str, list[str]], part: str) -> bool:
    """Whether keys of this root set a field of the part. Each `sft` feeds inference.model_name, and has no server."""
    if part == "inference":
        return part in feeds
    return part == "launch" or any(field.startswith(f"{part}.") for field in feeds)


def _typed(hint: Any, value: Any) -> Any:
    """The value in the type of the field; None for a value of another type, such as `ep = "auto"`."""
    if value is None:
        return None
    written = str(hint)
    if "tuple[" in written:
        entries = value if isinstance(value, list | tuple) else [value if isinstance(value, str) else None]
        typed = tuple(_typed(written.removeprefix("tuple[").replace(", ...]", ""), entry) for entry in entries)
        return None if None in typed else typed
    match value:
        case bool():
            return value if "bool" in written else None
        case int():
            return value if "int" in written or "float" in written else None
        case float():
            return value if "float" in written else int(value) if "int" in written and value.is_integer() else None
        case str():
            return value if "str | None" in written else None
        case dict():
            return value if "Mapping" in written else None
        case _:
            return None


def _number(value: Any, default: float) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else default


def _optim(known: Mapping[str, Any]) -> Optim:
    names, clip = ("lr", "beta1", "beta2", "weight_decay"), known.get("optim.clip_norm")
    default = Optim()
    numbers: dict[str, Any] = {name: _number(known.get(f"optim.{name}"), getattr(default, name)) for name in names}
    return Optim(**numbers, clip_norm=None if clip is None else _number(clip, 1.0))


def _schedule(known: Mapping[str, Any]) -> Schedule:
    decay = _number(known.get("schedule.decay_steps"), 0)
    kind: Any = _KINDS.get(str(known.get("schedule.kind")), "constant")
    warmup_steps = int(_number(known.get("schedule.warmup_steps"), 0))
    return Schedule(kind=kind, warmup_steps=warmup_steps, decay_steps=int(decay) or None)


def _checkpoint(known: Mapping[str, Any]) -> Checkpoint:
    interval = int(_number(known.get("checkpoint.interval_steps"), 0))
    keep_every = int(_number(known.get("checkpoint.keep_every_steps"), 0))
    return Checkpoint(interval_steps=interval or None, keep_every_steps=keep_every or None)


def _resume(source: FieldSource, known: Mapping[str, Any]) -> prime_rl_parts.Resume | None:
    """[resume] of 2026-08, which without a step means the latest; ckpt.resume_step of earlier generations."""
    step, folder = known.get("resume.step"), known.get("resume.dir")
    has_table = isinstance(source.values.get("resume"), dict) and source.generation.find(source.root, ("resume",))
    if step is None and not has_table:
        return None
    return prime_rl_parts.Resume(step=_typed("int", step) if step is not None else -1, dir=_typed("str | None", folder))


# --- environments --------------------------------------------------------------------------------

# RunSpec field -> the keys of an entry that set it, in any generation.
_ENVIRONMENT: dict[str, tuple[str, ...]] = {
    "id": ("env.taskset.id", "env.id", "id"),
    "name": ("name",),
    "ratio": ("ratio",),
    "group_size": ("group_size", "rollouts_per_example"),
    "examples": ("num_examples",),
    "max_completion_tokens": ("sampling.max_completion_tokens", "sampling.max_tokens"),
    "temperature": ("sampling.temperature",),
    "runtime": ("env.agent.runtime.type",),
    "harness": ("env.agent.harness.id",),
    "executor_backend": ("env.executor_backend", "env.taskset.executor_backend", "args.executor_backend"),
    "max_concurrent": ("serve.max_concurrent",),
    "address": ("serve.address", "address"),
    "args": ("args", "env"),
}


def _environments(
    source: FieldSource, feeds: Mapping[str, list[str]], keys: dict[str, str]
) -> prime_rl_parts.Environments | None:
    key_of = {
        split: feeds[f"environments.{split}"][0] for split in ("train", "evaluate") if f"environments.{split}" in feeds
    }
    found = {}
    for split, key in key_of.items():
        entries = value_at(source.values, split_mark(key)[1])
        if isinstance(entries, list):
            found[split] = tuple(
                _environment(entry, f"environments.{split}.{number}", f"{key}.{number}", keys)
                for number, entry in enumerate(entries)
                if isinstance(entry, dict)
            )
    return prime_rl_parts.Environments(**found) if key_of else None


def _environment(entry: dict[str, Any], name: str, key: str, keys: dict[str, str]) -> prime_rl_parts.EnvironmentSource:
    fields: dict[str, Any] = {"has_agent": isinstance(value_at(entry, ("env", "agent")), dict)}
    for field, candidates in _ENVIRONMENT.items():
        found = [one for one in candidates if value_at(entry, tuple(one.split("."))) is not None]
        used = found[0] if found else candidates[0]
        keys[f"{name}.{field}"] = f"{key}.{used}"
        hint = prime_rl_parts.EnvironmentSource.__annotations__[field]
        fields[field] = _typed(hint, value_at(entry, tuple(used.split("."))))
    return prime_rl_parts.EnvironmentSource(**fields)
