"""Builds the RunSpec that a prime-rl file describes, and the key map of its fields. Judges nothing.

A field is the file's value, else the default of its generation where the table around it is there; a value
with a fault is not known. Which key feeds which field stands in the table of the generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any, NamedTuple

from prime_train.config.prime_rl.prime_train_table import prime_train
from prime_train.config.prime_rl.schema import Generation, Row
from prime_train.config.prime_rl.validate_value import NONE
from prime_train.spec import ENDLESS_STEPS, Checkpoint, Data, Optim, Run, RunSpec, Schedule, prime_rl_parts
from prime_train.toml.document import KeyPath, dotted

_KINDS = {"linear": "wsd", "cosine": "cosine", "constant": "constant"}
_ALGORITHMS = {"rl": "grpo"}
_UNNAMED = "run"  # prime-rl makes a name of its own where the file gives none
_PARTS: dict[str, Any] = {
    "launch": prime_rl_parts.Launch,
    "saving": prime_rl_parts.Saving,
    "deployment": prime_rl_parts.Deployment,
    "trainer": prime_rl_parts.Trainer,
    "finetune": prime_rl_parts.Finetune,
    "lora": prime_rl_parts.Lora,
    "rollout": prime_rl_parts.Rollout,
    "evaluation": prime_rl_parts.Evaluation,
    "inference": prime_rl_parts.Inference,
    "weight_broadcast": prime_rl_parts.WeightBroadcast,
    "transport": prime_rl_parts.Transport,
    "monitor": prime_rl_parts.Monitor,
}
# In the files of one component there is no table of its own name: the file is the component.
_IS_ROOT = {"rollout": "orchestrator", "inference": "inference"}
_SAID_ONLY = ("weight_broadcast.trainer_kind", "weight_broadcast.rollout_kind", "weight_broadcast.inference_kind")


class Source(NamedTuple):
    """What a RunSpec is built from. `aliased` and `faulty` are what the walk found; `ours` is [prime_train]."""

    generation: Generation
    root: str
    values: Mapping[str, Any]
    aliased: Mapping[KeyPath, KeyPath]
    faulty: Set[KeyPath]
    ours: Any = None


def run_of(source: Source) -> tuple[RunSpec, dict[str, str]]:
    """The RunSpec of a file, and its fields' keys."""
    feeds = source.generation.feeds.get(source.root, {})
    keys: dict[str, str] = {}
    known: dict[str, Any] = {}
    for name, candidates in feeds.items():
        key, value = _fed(source, candidates, said_only=name in _SAID_ONLY)
        if key is not None:
            keys[name] = key
            known[name] = value
    parts = {part: _part(source, feeds, known, part) for part in _PARTS}
    return (
        RunSpec(
            run=Run(name=_text(known.get("run.name")) or _UNNAMED, max_steps=_steps(known.get("run.max_steps"))),
            data=Data(sources=()),
            optim=_optim(known),
            schedule=_schedule(known),
            checkpoint=_checkpoint(known),
            resume=_resume(source, known),
            environments=_environments(source, feeds, keys),
            prime_train=prime_train(source.ours, keys),
            **parts,
        ),
        keys,
    )


# --- one field -----------------------------------------------------------------------------------


def _fed(source: Source, candidates: list[str], *, said_only: bool) -> tuple[str | None, Any]:
    """(key, value) of a field: the first candidate that the file says, else the default of the first.

    The key is None where the file's value is at fault: then nothing is to be said of the field.
    """
    for candidate in candidates:
        mark, path = _parsed(candidate)
        written = _written(source, path)
        value, is_there = _value(source.values, written)
        if not is_there:
            continue
        if any(written[: len(fault)] == fault or fault[: len(written)] == written for fault in source.faulty if fault):
            if mark == "?" or isinstance(value, dict):
                return dotted(written), True
            return None, None
        return dotted(written), _marked(mark, None if value == NONE else value)
    mark, path = _parsed(candidates[0])
    default = None if said_only else _default(source, path)
    return dotted(_written(source, path)), _marked(mark, default)


def _parsed(candidate: str) -> tuple[str, KeyPath]:
    mark = candidate[0] if candidate[0] in "#?" else ""
    return mark, tuple(candidate[len(mark) :].split("."))


def _marked(mark: str, value: Any) -> Any:
    match mark:
        case "#":
            return len(value) if isinstance(value, list | tuple) else None
        case "?":
            return value is not None and value is not False
        case _:
            return value


def _written(source: Source, path: KeyPath) -> KeyPath:
    """The path as the file has it, where it uses other words for some of the keys."""
    written: KeyPath = ()
    for part in path:
        written = source.aliased.get((*written, part), (*written, part))
    return written


def _value(values: Mapping[str, Any], path: KeyPath) -> tuple[Any, bool]:
    current: Any = values
    for part in path:
        if not isinstance(current, dict) or part not in current:
            return None, False
        current = current[part]
    return current, True


def _default(source: Source, path: KeyPath) -> Any:
    """What a key is that the file does not say; None where a table around it is not there, or has no default."""
    table = source.generation.root(source.root)
    values: Any = source.values
    for depth, part in enumerate(path):
        row: Row | None = table.row(str(part))
        if row is None or (row.when and table.member(values) not in row.when):
            return None
        below = values.get(part) if isinstance(values, dict) else None
        if depth == len(path) - 1:
            return {} if row.default == () and row.table else row.default
        if (below is None and row.default is None) or below in (NONE, False) or not row.table:
            return None
        table = source.generation.table(row.table)
        values = below if isinstance(below, dict) else {}
    return None


# --- parts ---------------------------------------------------------------------------------------


def _part(source: Source, feeds: Mapping[str, list[str]], known: Mapping[str, Any], part: str) -> Any:
    """One part of the RunSpec beyond the native ones; None where the run has no such thing."""
    is_root = _IS_ROOT.get(part) == source.root
    if part in feeds and not is_root and known.get(part) is None:
        return None
    front = f"{part}."
    is_fed = any(name.startswith(front) for name in feeds) or part == "launch"
    if not is_root and not (part in feeds if part == "inference" else is_fed):  # each `sft` feeds the name of a model
        return None
    cls = _PARTS[part]
    fields = {name: _typed(hint, known.get(front + name)) for name, hint in cls.__annotations__.items()}
    if part == "rollout" and "rollout.algorithm" not in feeds:
        fields["algorithm"] = "grpo"  # the one objective of a generation that has no key for it
    elif part == "rollout":
        fields["algorithm"] = _ALGORITHMS.get(str(fields["algorithm"]), fields["algorithm"])
    elif part == "launch":
        fields["generation"] = source.generation.name
    elif part == "trainer" and "finetune.data_name" in feeds:
        fields["fake_data"] = _value(source.values, ("data", "type"))[0] == "fake"
    return cls(**fields)


def _typed(hint: Any, value: Any) -> Any:
    """The value as the field holds it; None for one of another kind, as `ep = "auto"`."""
    written = str(hint)
    match value:
        case None:
            return None
        case list() | tuple() if "tuple[" in written:
            return tuple(value)
        case str() if "tuple[" in written:
            return (value,)
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


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _number(value: Any, default: float) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else default


def _steps(value: Any) -> int:
    return int(_number(value, ENDLESS_STEPS))


def _optim(known: Mapping[str, Any]) -> Optim:
    plain = Optim()
    clip = known.get("optim.clip_norm")
    return Optim(
        lr=_number(known.get("optim.lr"), plain.lr),
        beta1=_number(known.get("optim.beta1"), plain.beta1),
        beta2=_number(known.get("optim.beta2"), plain.beta2),
        weight_decay=_number(known.get("optim.weight_decay"), plain.weight_decay),
        clip_norm=None if clip is None else _number(clip, 1.0),
    )


def _schedule(known: Mapping[str, Any]) -> Schedule:
    decay = _number(known.get("schedule.decay_steps"), 0)
    kind: Any = _KINDS.get(str(known.get("schedule.kind")), "constant")
    warmup_steps = int(_number(known.get("schedule.warmup_steps"), 0))
    return Schedule(kind=kind, warmup_steps=warmup_steps, decay_steps=int(decay) or None)


def _checkpoint(known: Mapping[str, Any]) -> Checkpoint:
    interval = int(_number(known.get("checkpoint.interval_steps"), 0))
    keep_every = int(_number(known.get("checkpoint.keep_every_steps"), 0))
    return Checkpoint(interval_steps=interval or None, keep_every_steps=keep_every or None)


def _resume(source: Source, known: Mapping[str, Any]) -> prime_rl_parts.Resume | None:
    """[resume] of 2026-08, which goes on from the latest where it names no step; ckpt.resume_step before it."""
    step, folder = known.get("resume.step"), known.get("resume.dir")
    has_table = isinstance(source.values.get("resume"), dict) and source.generation.find(source.root, ("resume",))
    if step is None and not has_table:
        return None
    return prime_rl_parts.Resume(step=_typed("int", step) if step is not None else -1, dir=_typed("str | None", folder))


# --- environments --------------------------------------------------------------------------------

# RunSpec field -> where an entry says it, in the words of any generation.
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
    source: Source, feeds: Mapping[str, list[str]], keys: dict[str, str]
) -> prime_rl_parts.Environments | None:
    found = {}
    for split in ("train", "evaluate"):
        candidates = feeds.get(f"environments.{split}", [])
        for candidate in candidates[:1]:
            entries, is_there = _value(source.values, _parsed(candidate)[1])
            if is_there and isinstance(entries, list):
                named = enumerate(entries)
                found[split] = tuple(
                    _environment(entry, f"environments.{split}.{number}", f"{candidate}.{number}", keys)
                    for number, entry in named
                    if isinstance(entry, dict)
                )
    has_them = any(f"environments.{split}" in feeds for split in ("train", "evaluate"))
    return prime_rl_parts.Environments(**found) if has_them else None


def _environment(entry: dict[str, Any], name: str, key: str, keys: dict[str, str]) -> prime_rl_parts.Environment:
    fields: dict[str, Any] = {"has_agent": isinstance(_value(entry, ("env", "agent"))[0], dict)}
    for field, candidates in _ENVIRONMENT.items():
        said = list(_said(entry, candidates))
        keys[f"{name}.{field}"] = f"{key}.{said[0][0] if said else candidates[0]}"
        hint = prime_rl_parts.Environment.__annotations__[field]
        fields[field] = _typed(hint, said[0][1]) if said else None
    return prime_rl_parts.Environment(**fields)


def _said(entry: dict[str, Any], candidates: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for candidate in candidates:
        value, is_there = _value(entry, tuple(candidate.split(".")))
        if is_there:
            yield candidate, value
