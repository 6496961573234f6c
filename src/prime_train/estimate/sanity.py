"""Finds values that pass the schema but make an estimate impossible. Pure; reports no other mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from prime_train.spec import ENDLESS_STEPS, RunSpec
from prime_train.spec.answers import part_of

_MOST = 10**15  # limit of every other number: the longest published training runs had fewer than 10^14 tokens
_MOST_TOKENS = 10**9  # tokens of one sequence: the longest published context has 10^8
_MOST_GPUS = 10**6  # ten times the largest published cluster
_MOST_OF = {
    "ctx_tokens": _MOST_TOKENS,
    **dict.fromkeys(("gpus", "shards", "replicas", "train_gpus", "infer_gpus", "dp_shard", "dp_replicate"), _MOST_GPUS),
}
_PARTS = ("run", "model", "data", "batch", "parallel", "checkpoint", "trainer", "finetune", "lora", "rollout",
          "inference", "deployment", "recipe")  # fmt: skip


class Implausible(NamedTuple):
    """A RunSpec field, what is wrong with its value, why, and a valid value ("" for none)."""

    field: str
    what: str
    why: str
    instead: str = ""


def find_implausible(run: RunSpec) -> Iterator[Implausible]:
    """Every value of a run that makes an estimate of memory or time impossible."""
    fraction = run.inference.gpu_memory_fraction if run.inference is not None else None
    if fraction is not None and not 0 < fraction <= 1:
        why = "vLLM refuses to start with it"
        yield Implausible("inference.gpu_memory_fraction", f"{fraction:g} is not a fraction of a GPU", why, "0.9")
    for part in _PARTS:
        for name, value in _numbers(part_of(run, part)):
            most = _MOST_OF.get(name, _MOST)
            if abs(value) > most:
                shown = f"{value:.3g}" if abs(value) < 1e300 else f"2^{abs(value).bit_length()}"
                unit = {_MOST_TOKENS: " tokens in a sequence", _MOST_GPUS: " GPUs"}.get(most, "")
                yield Implausible(f"{part}.{name}", shown, f"no real run has more than {most:.0e}{unit}")


def _numbers(part: Any) -> Iterator[tuple[str, int]]:
    for name in type(part).__annotations__ if part is not None else ():
        value = getattr(part, name)
        is_endless = name == "max_steps" and value == ENDLESS_STEPS
        if isinstance(value, int) and name != "seed" and not is_endless:
            yield name, value
