"""What is known of one training in a foreign file, and what follows from its numbers. Pure."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from prime_train.config.foreign.recipe.fields import Fields, Found
from prime_train.config.foreign.recipe.layout import Beside
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


def named_method(part: ForeignPart, pattern: re.Pattern[str]) -> str:
    """The method in the name of the script that a text starts; "" if it names none, or several."""
    named = set(pattern.findall(part.document.text))
    return named.pop() if len(named) == 1 else ""
