"""Turns the parts of another program's file into a recipe: what an estimate, an offer and a check depend on. Pure.

What the file sets, what its program takes without it, and what only the run knows stay apart, so that an answer can
list them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from prime_train.config.foreign.recipe import on_accelerate, own_loops
from prime_train.config.foreign.recipe.fields import Fields, Found, formats, mapping_of, read_fields, write_field
from prime_train.config.foreign.recipe.layout import beside_of, gpus_of
from prime_train.config.foreign.recipe.sizes import sizes_of
from prime_train.config.foreign.recipe.training import ForeignTraining
from prime_train.config.foreign.values import ForeignPart, Open
from prime_train.config.parsed_config import Reading
from prime_train.spec import ENDLESS_STEPS, Checkpoint, Data, Run, RunSpec
from prime_train.spec.prime_rl_parts import Recipe

PROGRAMS = {**on_accelerate.PROGRAMS, **own_loops.PROGRAMS}
_ADAPTER = ("adapter_rank", "adapter_targets", "adapter_parameters", "trains_embeddings", "base_dtype")
# These change the memory of a training several times over.
_DECISIVE = (
    *("sharding", "adapter", "quantization", "tensor_parallel", "pipeline_parallel", "context_parallel"),
    "expert_parallel",
)
# The line about types has these, because they decide most.
_LISTED_ELSEWHERE = ("weight_dtype", "base_dtype", "compute_dtype")
_TYPES = {"weight_dtype": "weights", "base_dtype": "frozen base", "compute_dtype": "products"}
# Memory depends little on these; an answer does not list them.
_SILENT = ("objective", "compile", "optimizer_in_backward", "checkpoint_steps", "max_steps", "reference_model", "gpus")
# What explains the words of another program comes after it: a trainer of its own before the Trainer that it is made of.
_ORDER = {"hf": 1, "deepspeed": 2, "accelerate": 3}
_TRANSFORMERS = (
    "transformers 4 loads weights in fp32 where the script sets no type, and 5 in the type of the checkpoint"
)
_NOTHING: Mapping[str, str] = {}


class Otherwise(NamedTuple):
    """Other values of a recipe, and when they hold."""

    when: str
    values: Mapping[str, Any]


class RecipeDraft(NamedTuple):
    """A recipe, and where each value is from.

    `keys` maps its fields to the keys of the file. `types` are the types of its numbers, `because` why they are so, and
    `assumed` lines about what the file leaves to its program. `not_known` has the words of the file for the fields
    that only the run knows; they are None in the recipe. `sizes` is the config.json that the file describes itself,
    None if it names a model.
    """

    recipe: Recipe
    format: str
    keys: Mapping[str, str]
    types: str = ""
    because: str = ""
    assumed: tuple[str, ...] = ()
    not_known: Mapping[str, str] = _NOTHING
    otherwise: tuple[Otherwise, ...] = ()
    max_steps: int | None = None
    checkpoint_steps: int | None = None
    sizes: Mapping[str, Any] | None = None

    @property
    def undecided(self) -> str | None:
        """A field that is not known and without which no memory can be computed; None if there is none."""
        return next((name for name in _DECISIVE if name in self.not_known), None)

    @property
    def lines(self) -> tuple[str, ...]:
        """What an answer lists that does not compute memory."""
        types = f"{self.types}: {self.because}" if self.because else self.types
        return (types, *(f"not known: {name}: {text}" for name, text in self.not_known.items()), *self.assumed)

    @property
    def run(self) -> RunSpec:
        """The run that an estimate takes. It is never started."""
        return RunSpec(
            run=Run(name=self.format, max_steps=self.max_steps or ENDLESS_STEPS),
            data=Data(sources=()),
            checkpoint=Checkpoint(interval_steps=self.checkpoint_steps),
            recipe=self.recipe,
            format="recipe",
        )

    def write(self, field: str, value: Any) -> tuple[str, str] | None:
        """(key, text) that set a field of the recipe in the file; None if no key does."""
        name = field.removeprefix("recipe.")
        written = self.keys.get(name, "")
        return None if " " in written else write_field(self.format, name, value, written)  # a sum of two keys is no key


def to_recipe(parts: Sequence[ForeignPart], gpus: int | None = None) -> RecipeDraft | None:
    """The training that the parts describe; None if none of them is of a trainer.

    `gpus`: the number of GPUs where the file does not set it. The recipe keeps it open even then.
    """
    chosen = _choose(parts)
    if chosen is None:
        return None
    part, group, count = chosen
    table, given = mapping_of(part.format), read_fields(part.format, part.values)
    beside = beside_of(group, given)
    found_gpus = _gpus(part, given) or gpus_of(group, beside)
    known = found_gpus.value if found_gpus is not None and not isinstance(found_gpus.value, Open) else gpus
    fields = {
        **given,
        **PROGRAMS.get(part.format, ForeignTraining.accumulation)(ForeignTraining(part, given, beside, known)),
    }
    if found_gpus is not None:
        fields["gpus"] = found_gpus
    fields = {name: field for name, field in fields.items() if not _is_idle(name, fields)}
    recipe = Recipe(program=table["program"], **_values(fields))
    types = {name: fields[name] for name in _TYPES if name in fields and not _is_open(fields[name])}
    sizes = sizes_of(part, table) if "sizes" in table else None
    return RecipeDraft(
        recipe=recipe,
        format=part.format,
        keys={name: field.key for name, field in fields.items() if field.key and name in Recipe._fields},
        types=", ".join(f"{_TYPES[name]} {field.value}" for name, field in types.items()),
        because="; ".join(dict.fromkeys(field.why for field in types.values() if field.why)),
        assumed=(
            *([f"the first of {count} trainings in the file"] if count > 1 else []),
            *_assumptions(fields, table["program"]),
        ),
        not_known=dict(_open_fields(fields)) | _hidden_flags(part),
        otherwise=tuple(_otherwise(part.format, fields)),
        max_steps=_count(fields, "max_steps"),
        checkpoint_steps=_count(fields, "checkpoint_steps"),
        sizes=sizes,
    )


def _choose(parts: Sequence[ForeignPart]) -> tuple[ForeignPart, Sequence[ForeignPart], int] | None:
    """The part of the first training, the parts that belong to it, and how many trainings there are.

    The parts of a training that a script starts have its number; those of all trainings have 0. A file that a command
    names comes after the flags, and has them in their place.
    """
    trainers = [part for part in parts if part.format in formats()]
    if not trainers:
        return None
    first = min(_ORDER.get(part.format, 0) for part in trainers)
    ranked = [part for part in trainers if _ORDER.get(part.format, 0) == first]
    start = _start(ranked[0])
    same = [part for part in ranked if _start(part) == start and part.format == ranked[0].format]
    group = [part for part in parts if _start(part) in (0, start)]
    return (same[-1], group, len({_start(part) for part in ranked})) if start else (same[0], group, len(ranked))


def _start(part: ForeignPart) -> int:
    """The number of the training in a script; 0 in any other file."""
    number: int = getattr(part, "start", 0)
    return number


def _hidden_flags(part: ForeignPart) -> dict[str, str]:
    """Whether the command has words that only the shell knows: any of them may set what the file leaves out."""
    if not getattr(part.values, "is_partial", False):
        return {}
    return {"flags": "the command has words that only the shell knows"}


def with_run(reading: Reading, draft: RecipeDraft) -> Reading:
    """The reading with the run of a draft, whose fields have the keys of the file."""
    keys = {f"recipe.{name}": key for name, key in draft.keys.items()}
    return reading._replace(run=draft.run, keys=keys, all_fields=False)


def read_run(reading: Reading, gpus: int | None = None) -> Reading:
    """The reading, with a run also where it is of another program's training, if nothing decisive is left open.

    `gpus` as for to_recipe.
    """
    draft = None if reading.foreign is None else to_recipe(reading.foreign, gpus)
    return reading if draft is None or draft.undecided else with_run(reading, draft)


def _gpus(part: ForeignPart, fields: Fields) -> Found | None:
    """The GPUs that a trainer's own keys set: nodes x GPUs of a node."""
    node, nodes = fields.get("node_gpus"), fields.get("nodes")
    if node is None or nodes is None or (part.format == "openrlhf" and not node.written):
        return None
    key = f"{nodes.key} x {node.key}"
    if isinstance(node.value, Open) or isinstance(nodes.value, Open):
        return Found(Open(key), key)
    return Found(node.value * nodes.value, key)


def _is_idle(name: str, fields: Fields) -> bool:
    """Whether a field has no effect: that of an adapter where all weights are trained, for example."""
    if name in _ADAPTER:
        return bool(fields.get("adapter", Found("none")).value == "none")
    if name == "head_chunks":
        return bool(fields.get("head", Found(None)).value != "token-chunked")
    return False


def _values(fields: Fields) -> dict[str, Any]:
    """The values that a Recipe has. What is not known is left out."""
    names = (name for name in Recipe._fields if name in fields and name != "program")
    return {name: fields[name].value for name in names if not isinstance(fields[name].value, Open)}


def _count(fields: Fields, name: str) -> int | None:
    value = fields.get(name, Found(None)).value
    return value if isinstance(value, int) else None


# --- what an answer lists ------------------------------------------------------------------------


def _assumptions(fields: Fields, program: str) -> Iterator[str]:
    taken = [_shown(name, field) for name, field in fields.items() if _is_listed(name, field)]
    if taken:
        yield f"not in the file, so {program}'s defaults: {', '.join(taken)}"
    reasoned: dict[str, list[str]] = {}
    for name, field in fields.items():
        if field.why and name in Recipe._fields and name not in _TYPES and not _is_open(field):
            reasoned.setdefault(field.why, []).append(f"{name} = {json.dumps(field.value)}")
    for why, values in reasoned.items():
        yield f"{', '.join(values)}: {why}"


def _is_listed(name: str, field: Found) -> bool:
    is_default = not field.written and bool(field.key) and not field.why and not _is_open(field)
    return is_default and name in Recipe._fields and name not in (*_LISTED_ELSEWHERE, *_SILENT)


def _is_open(field: Found) -> bool:
    return isinstance(field.value, Open)


def _shown(name: str, field: Found) -> str:
    return f"{name} = {json.dumps(field.value)} ({field.key})"


def _open_fields(fields: Fields) -> Iterator[tuple[str, str]]:
    for name, field in fields.items():
        if _is_open(field) and (name in Recipe._fields or name == "critic"):
            yield name, field.value.text + (f"; {field.why}" if field.why else "")


def _otherwise(format: str, fields: Fields) -> Iterator[Otherwise]:
    """The versions of transformers differ where only the script loads the weights."""
    if format not in ("hf", "accelerate", "deepspeed"):
        return
    for name in ("weight_dtype", "base_dtype"):
        field = fields.get(name)
        if field is not None and field.why.startswith("the type of the checkpoint"):
            yield Otherwise(_TRANSFORMERS, {name: "fp32"})
