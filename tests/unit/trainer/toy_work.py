"""A kind of training that is not in the trainer, and a trainer of it: it learns to write some digits once more.

`python -m tests.unit.trainer.toy_work RUN_DIR ATTEMPT RESUME_STEP` trains.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from prime_train.core.rundir import RunDir
from prime_train.events import Measured
from prime_train.spec import RunSpec
from prime_train.trainer import parallel
from prime_train.trainer.attempt import Attempt, StopFlag, read_run
from prime_train.trainer.build import get_ready
from prime_train.trainer.device import Device
from prime_train.trainer.loops import pretrain
from prime_train.trainer.loops.after_step import export_text
from prime_train.trainer.loops.step import Training
from prime_train.trainer.loops.work import Work
from prime_train.trainer.model.decoder import cross_entropy_sum
from prime_train.trainer.parallel import World
from prime_train.trainer.tokenizer import LoadedTokenizer
from tests.unit.trainer import tiny

DIGITS = LoadedTokenizer(lambda texts: [[*map(int, text)] for text in texts], str, 11, 10, (), "digits")
HALF = 4  # digits, each of them twice


@dataclass(frozen=True, slots=True)
class Copies:
    tokens: Tensor  # (B, 2 * HALF)

    @property
    def labelled_tokens(self) -> int:
        return HALF * len(self.tokens)


def draw(numbers: range) -> Copies:
    """The rows with these numbers."""
    halves = [torch.randint(0, 10, (HALF,), generator=torch.Generator().manual_seed(number)) for number in numbers]
    return Copies(torch.stack([half.repeat(2) for half in halves]))


class CopyRows:
    def __init__(self, micro_batch: int, rank: int, ranks: int, position: dict[str, Any] | None) -> None:
        self._size, self._rank, self._ranks = micro_batch, rank, ranks
        self._next = position["next"] if position else 0

    def next_micro_batch(self) -> Copies:
        start = self._next + self._rank * self._size
        self._next += self._ranks * self._size
        return draw(range(start, start + self._size))

    def take_settings(self, run: RunSpec) -> None:
        self._size = run.batch.micro_batch

    def position(self) -> dict[str, Any]:
        return {"next": self._next}


def copy_loss(model: nn.Module, batch: Copies, device: Device) -> Tensor:
    """Sum of the cross-entropy over the second halves, 0-d."""
    tokens = batch.tokens.to(device.torch)
    positions = torch.arange(2 * HALF, device=device.torch).expand_as(tokens)  # (B, 2 * HALF)
    logits = model(tokens, positions, None)  # (B, 2 * HALF, V)
    return cross_entropy_sum(logits[:, HALF - 1 : -1], tokens[:, HALF:])


class OtherRows:
    """The loss on rows that no step has."""

    def measure(self, attempt: Attempt, training: Training, step: int) -> float:
        batch = draw(range(10**6, 10**6 + 8 * attempt.run.batch.micro_batch))
        with torch.no_grad():
            loss = copy_loss(parallel.unwrap(training.model), batch, training.device).item() / batch.labelled_tokens
        attempt.emit(Measured(attempt.number, step, "copies", "loss", loss, batch.labelled_tokens))
        return loss

    def close(self) -> None: ...


def load_copies(run: RunSpec, _world: World) -> Work[Copies]:
    return Work(
        get_ready=partial(get_ready, DIGITS),
        open_rows=lambda rank, ranks, position: CopyRows(run.batch.micro_batch, rank, ranks, position),
        loss=copy_loss,
        unit="digits",
        open_evaluations=lambda _attempt, _ready: (OtherRows(),),
        export=export_text,
    )


def main(path: str, number: str, resume_step: str) -> None:
    run_dir = RunDir(Path(path))
    attempt: Attempt = tiny.attempt(run_dir, read_run(run_dir), int(resume_step), int(number))
    pretrain.train(attempt, StopFlag(run_dir.stop_request(attempt.number)), load_copies)


if __name__ == "__main__":
    main(*sys.argv[1:])
