"""A kind of training as one value, which is all that the loop knows of it. Trains nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from prime_train.spec import RunSpec
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.evaluation.evaluation import Evaluation
from prime_train.trainer.loops.ready import Ready
from prime_train.trainer.loops.step import AnyBatch, LossSum
from prime_train.trainer.parallel import World
from prime_train.trainer.tokenizer import LoadedTokenizer

Position = dict[str, Any]  # JSON-able
Drawn = TypeVar("Drawn", covariant=True)  # a micro-batch: a dataclass of tensors (B, T)


class TrainRows(Protocol[Drawn]):
    """The micro-batches of one rank, in an order that depends only on the seed."""

    def next_micro_batch(self) -> Drawn: ...

    def position(self) -> Position:
        """The position after the rows that all ranks have used, the same on every rank."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Generic[AnyBatch]):
    """What a kind of training learns from, and how. Text: `text_work.py`. Chats: `sft.py`."""

    tokenizer: LoadedTokenizer  # the model embeds its tokens, and an exported folder has its files
    # Both are opened late: the position is in the checkpoint, and the evaluations need the model.
    open_rows: Callable[[int, int, Position | None], TrainRows[AnyBatch]]  # (rank, ranks, where an attempt goes on)
    loss: LossSum[AnyBatch]
    unit: str  # of what the loss counts, for the progress: "tokens"
    open_evaluations: Callable[[Attempt, Ready], tuple[Evaluation, ...]]  # called by every rank


LoadWork = Callable[[RunSpec, World], Work[Any]]  # called by every rank; one prepares what the others read
