"""Lists what an estimate took for values that another program's file leaves open, and doubts its verdict. Pure."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from prime_train.config.foreign.recipe.draft import Otherwise, RecipeDraft
from prime_train.config.parsed_config import Reading
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.units import GIB
from prime_train.estimate.advice import Keys
from prime_train.estimate.candidate_changes import Value
from prime_train.estimate.estimate import Estimate
from prime_train.estimate.memory.assumed import assumed_by, describe_types
from prime_train.estimate.memory.roles import RunMemory, memory_of
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.values import Hardware, find_largest
from prime_train.estimate.verdict import Chance, MemoryVerdict
from prime_train.spec import RunSpec
from prime_train.spec.prime_rl_parts import Recipe

# What an estimate takes for a number that only the run knows, and the most that it looks for.
_COUNTED = {"micro_batch": ("one sequence is", 1024), "ctx_tokens": ("2,048 tokens are", 4_194_304)}
# The values with the least memory of what may be open. What is open and not here may need more than was counted.
_LEAST: dict[str, Value] = {
    "micro_batch": 1,
    "ctx_tokens": 1,
    "micro_batches_per_step": 1,
    "optimizer": "sgd",
    "head": "cce",
    "activation_checkpointing": "full",
    "attention": "flash",
}
_COUNTED_AS_MOST = ("optimizer", "head", "activation_checkpointing", "micro_batches_per_step", "attention", "gpus")
_EVEN = 0.5
# What advice may set, as an example: a change is offered where the file's format has words for it.
_ADVISED: dict[str, Value] = {
    "recipe.activation_checkpointing": "full",
    "recipe.head": "token-chunked",
    "recipe.micro_batch": 1,
    "recipe.ctx_tokens": 1024,
    "recipe.optimizer": "adamw-8bit",
    "recipe.activation_offloading": True,
    "recipe.adapter": "lora",
    "recipe.adapter_rank": 16,
    "recipe.adapter_targets": ("all",),
}
_SYNTAX = {"yaml": ": ", "yml": ": ", "json": ": ", "toml": " = "}  # between key and value; else flags


class _Case(NamedTuple):
    run: RunSpec
    hardware: Hardware
    shape: ModelShape

    def with_values(self, **values: object) -> RunMemory:
        recipe = (self.run.recipe or Recipe())._replace(**values)  # type: ignore[arg-type]
        return memory_of(dataclasses.replace(self.run, recipe=recipe), self.hardware, self.shape)[0]


def refuse_decisive(draft: RecipeDraft, path: str) -> None:
    """Raises UserError if the file leaves open what decides the memory."""
    name = draft.undecided
    if name is None:
        return
    raise UserError(
        what=f"{name} is not known: {draft.not_known[name]}",
        where=f"{draft.keys.get(name) or name} in {path}",
        why="it changes the memory of the training several times over, and nothing is guessed",
        fix="write the value into the file, or put the file that it names beside it",
        exit_code=ExitCode.FINDINGS,
    )


def keys_of(reading: Reading, draft: RecipeDraft | None) -> Keys:
    """The keys and words of the user's file, for advice. A file of another program has those of its own format."""
    if draft is None:
        return Keys(reading.key, reading.has)
    between = _SYNTAX.get(reading.document.path.rpartition(".")[2], " ")

    def has(field: str) -> bool:
        return field in _ADVISED and draft.write(field, _ADVISED[field]) is not None

    def write(field: str, value: Value) -> str:
        key, word = draft.write(field, value) or (field, str(value))
        if between == " ":
            return f"--{key.replace('_', '-') if draft.format == 'megatron' else key} {word}"
        return f"{key}{between}{word}"

    return Keys(reading.key, has, write)


def explain(found: Estimate, draft: RecipeDraft, run: RunSpec) -> Estimate:
    """The estimate with lines for what the file left open, and a verdict that is no more certain than they allow."""
    case = _Case(run, found.hardware, found.shape)
    setup, recipe = setup_of(run, found.hardware, found.shape), run.recipe or Recipe()
    others = [(other, case.with_values(**other.values)) for other in draft.otherwise]
    lines = (
        describe_types(recipe, setup) + (f": {draft.because}" if draft.because else ""),
        *(f"not known: {name}: {text}{_counted(case, name)}" for name, text in draft.not_known.items()),
        *draft.assumed,
        *(_describe(other, memory) for other, memory in others),
    )
    memory = found.memory
    if _is_doubtful(case, draft, memory) or any(
        other.chance.verdict is not memory.chance.verdict for _, other in others
    ):
        even = Chance(MemoryVerdict.LIKELY, _EVEN)
        memory = memory._replace(roles=tuple(role._replace(chance=even) for role in memory.roles))
    replaced = set(assumed_by(recipe, setup))  # in the words of a [recipe]
    rest = (line for line in found.assumptions if line not in replaced)
    return found._replace(memory=memory, assumptions=(*lines, *rest))


def _is_doubtful(case: _Case, draft: RecipeDraft, memory: RunMemory) -> bool:
    """Whether the verdict depends on what is open: it fits, and may need more; or it does not, and may need less."""
    least = {name: _LEAST[name] for name in draft.not_known if name in _LEAST}
    if memory.chance.verdict is MemoryVerdict.DOES_NOT_FIT:
        return bool(least) and case.with_values(**least).chance.verdict is not MemoryVerdict.DOES_NOT_FIT
    return not set(draft.not_known) <= set(_COUNTED_AS_MOST)


def _counted(case: _Case, name: str) -> str:
    """What was counted for an open number, and the largest that fits."""
    if name == "micro_batches_per_step":
        return "; one micro-batch a step is counted"
    if name not in _COUNTED:
        return ""
    counted, most = _COUNTED[name]

    def fits(number: int) -> bool:
        return number == 0 or case.with_values(**{name: number}).chance.verdict is not MemoryVerdict.DOES_NOT_FIT

    largest = find_largest(0, most, fits)
    upto = f", up to {largest:,} fit" if 0 < largest < most else "" if largest else ", and not even one fits"
    return f"; {counted} counted{upto}"


def _describe(other: Otherwise, memory: RunMemory) -> str:
    """The memory under another version that the file allows."""
    need = max((role.memory.reserved.typical for role in memory.roles), default=0.0) / GIB
    values = ", ".join(f"{name} {value}" for name, value in other.values.items())
    return f"{other.when}: with {values} it is {need:.1f} GiB on each GPU, which {memory.chance.text}"
