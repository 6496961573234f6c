"""Finds values that a schema lets pass and that nothing can be reckoned from. Pure; judges no other mistake."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from prime_train.spec import ENDLESS_STEPS, RunSpec

_MOST = 10**15  # of whatever is counted: the longest training runs so far had fewer than 10^14 tokens
_PARTS = ("run", "model", "data", "batch", "parallel", "checkpoint", "trainer", "finetune", "lora", "rollout",
          "inference", "deployment", "recipe")  # fmt: skip


class Implausible(NamedTuple):
    """A RunSpec field, what is wrong with its value, why that cannot be, and a value that would do ("" for none)."""

    field: str
    what: str
    why: str
    instead: str = ""


def implausible(run: RunSpec) -> Iterator[Implausible]:
    """Every value of a run from which neither memory nor time can be reckoned."""
    fraction = run.inference.gpu_memory_fraction if run.inference is not None else None
    if fraction is not None and not 0 < fraction <= 1:
        why = "vLLM refuses to start with it"
        yield Implausible("inference.gpu_memory_fraction", f"{fraction:g} is no fraction of a GPU", why, "0.9")
    for part in _PARTS:
        for name, value in _numbers(getattr(run, part)):
            if abs(value) > _MOST:
                told = f"{value:.3g}" if abs(value) < 1e300 else f"2^{abs(value).bit_length()}"
                yield Implausible(f"{part}.{name}", told, f"no run counts to more than {_MOST:.0e} of anything")


def _numbers(part: Any) -> Iterator[tuple[str, int]]:
    for name in type(part).__annotations__ if part is not None else ():
        value = getattr(part, name)
        is_endless = name == "max_steps" and value == ENDLESS_STEPS
        if isinstance(value, int) and name != "seed" and not is_endless:
            yield name, value
