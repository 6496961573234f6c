"""The disk that checkpoints go to. Pure: the facts are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prime_train.findings import Problem, Severity
from prime_train.rules.base import facts_rule, known
from prime_train.rules.footprint import architecture, checkpoint_bytes, checkpoints_at_once
from prime_train.spec import RunSpec
from prime_train.units import format_bytes

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts


@facts_rule("DSK001", Severity.ERROR, needs=("save_dir", "model_folder", "tokenizer_folder"))
def too_little_disk(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """The checkpoints that are kept, and the one being written, must fit on the disk.

    a full disk ends the run at a checkpoint, and what was trained since the one before is lost

    A checkpoint is counted with 12 bytes per parameter: weights and the two moments of AdamW in fp32.

    Bad:
        [facts.save_dir]
        free_bytes = 104857600
    Good:
        [checkpoint]
        keep_last = 1
        [facts.save_dir]
        free_bytes = 104857600
    """
    decoder, folder = architecture(run, facts), known(facts.save_dir)
    if decoder is None or folder.refusal:
        return
    one, count = checkpoint_bytes(decoder), checkpoints_at_once(run)
    room = folder.free_bytes + folder.held_bytes
    if count * one <= room:
        return
    yield Problem(
        "checkpoint.keep_last",
        f"{count} checkpoints of {format_bytes(one)} = {format_bytes(count * one)}, and {folder.existing} has room for "
        f"{format_bytes(room)}",
        fix="make room there, give `run.dir` on another disk, or keep fewer",
    )


@facts_rule("DSK002", Severity.ERROR, needs=("save_dir",))
def save_dir_not_writable(_run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """The run directory must be writable.

    the run writes its state there before anything else

    Bad:
        [facts.save_dir]
        refusal = "Permission denied"
    Good:
        [run]
        dir = "runs"
    """
    folder = known(facts.save_dir)
    if folder.refusal:
        yield Problem(
            "run.dir",
            f"{folder.existing} takes no file: {folder.refusal}",
            fix=f"give `run.dir` a folder you can write to, or chmod u+w {folder.existing}",
        )
