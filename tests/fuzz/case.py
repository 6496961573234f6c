"""One case: copies a template, damages it, gives it to the commands and judges what they did."""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from prime_train.checkpoints.packing import archive
from prime_train.checkpoints.packing.archive import DamagedError
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.process_id import identify
from tests.fuzz.damage import Done, damage
from tests.fuzz.stage import Ended, Stage, digest, reap
from tests.fuzz.templates import COMMAND, NAMES, Reference, hashes, losses

READERS = (
    ("status", "small"),
    ("status", "small", "--json"),
    ("status",),
    ("ckpt", "list", "small"),
    ("ckpt", "list", "small", "--json"),
    ("ckpt", "verify", "small"),
    ("ckpt", "compress", "small"),
    ("ckpt", "restore", "small"),
    ("ckpt", "prune", "small", "--dry-run"),
    ("report", "small"),
    ("logs", "small"),
    ("diagnose", "runs/small"),
    ("stop", "small"),
    ("run", "run.toml", "--no-validate", "--dry-run"),
)
CLEAR = frozenset({1, 2, 4, 5})  # exit codes of an error that a person can act on
# Commands whose result has such a code: a damaged checkpoint, and logs without a failure or a good end.
VERDICTS = frozenset({("ckpt", ExitCode.FINDINGS), ("diagnose", ExitCode.OUT_OF_REACH)})
TEMPORARY = re.compile(r"\.tmp$|\.tmp\.")


class Failure(NamedTuple):
    """What was wrong, and after which damage."""

    area: str
    damage: str
    what: str


class Plan(NamedTuple):
    """What a case does. `trains`: the run is continued to its end, not only read."""

    limit_s: float = 60.0  # longest time of a command
    trains: bool = True
    only: tuple[str, ...] = ()  # areas or kinds of damage; empty = all


def play(
    stage: Stage, reference: Reference, chance: random.Random, stranger: subprocess.Popen[bytes], plan: Plan
) -> tuple[str, list[Failure]]:
    """How the run ended, and what was wrong."""
    template = chance.choice(NAMES)
    stage.copy(template)
    identity = identify(stranger.pid)
    assert identity is not None, "the stranger of an earlier case was killed"
    before = digest(stage.canary)
    done = damage(stage, chance, (identity.pid, identity.start_ticks), plan.only)
    problems: list[str] = []
    end = "read"
    for words in chance.sample(READERS, 2):
        read = stage.run(*words, limit_s=plan.limit_s)
        problems += _judge_reader(words, read)
        if read.code is None:
            break
    if plan.trains:
        ended = stage.run(*COMMAND, limit_s=plan.limit_s)
        problems += _judge_run(stage, reference, template, done, ended)
        end = "no end" if ended.code is None else str(ended.code)
    problems += [f"left running: {line}" for line in reap({stranger.pid})]
    if digest(stage.canary) != before:
        problems.append("files outside the run have changed")
    if stranger.poll() is not None:
        problems.append("a process that belongs to no run was ended")
    name = f"{template}: {done.text}"
    return end, [Failure(done.area, name, problem) for problem in problems]


def _judge_reader(words: tuple[str, ...], ended: Ended) -> Iterator[str]:
    command = " ".join(words)
    if ended.code is None:
        yield f"{command}: no end within {ended.wall_s:.0f} s"
    elif ended.code < 0 or ended.code not in {0, *CLEAR}:
        yield f"{command}: exit code {ended.code}: {_last(ended.text)}"
    elif ended.code and not _is_clear(ended.text) and (words[0], ended.code) not in VERDICTS:
        yield f"{command}: exit code {ended.code} without a clear error: {_last(ended.text)}"
    if words == ("status",) and "neighbour" not in ended.text:
        yield f"status does not show the other run: {_last(ended.text)}"


def _judge_run(stage: Stage, reference: Reference, template: str, done: Done, ended: Ended) -> Iterator[str]:
    if ended.code is None:
        yield f"run: no end within {ended.wall_s:.0f} s: {_last(ended.text)}"
    elif done.kind == "forge" and ended.code in {0, ExitCode.RESUMABLE}:
        return  # a forged record may tell another story, which is no damage
    elif ended.code == 0:
        excused = template == "finished" and done.area in ("checkpoint", "manifest", "step folder", "folder")
        yield from _compare(stage, reference, done, excused=excused)
    elif ended.code not in CLEAR:
        yield f"run: exit code {ended.code}: {_last(ended.text)}"
    elif not _is_clear(ended.text):
        yield f"run: exit code {ended.code} without a clear error: {_last(ended.text)}"
    left = [path for path in _walk(stage.run_dir.path) if TEMPORARY.search(path.name)]
    if left:
        yield f"left behind: {', '.join(path.name for path in left)}"


def _compare(stage: Stage, reference: Reference, done: Done, *, excused: bool) -> Iterator[str]:
    """How a finish differs from the undisturbed one. `excused`: a finished run keeps a damage of its checkpoints."""
    run_dir, last_step = stage.run_dir, reference.last_step
    if not excused:
        try:
            archive.restore(run_dir.checkpoint(last_step))  # `ckpt compress` of this case may have packed it
            found = hashes(run_dir.checkpoint(last_step), torch=stage.torch)
        except (OSError, ValueError, UserError, DamagedError, subprocess.CalledProcessError) as error:
            yield f"run: finished without its last checkpoint: {error}"
        else:
            if found != reference.files:
                yield "run: the last checkpoint is not bit-equal"
    if done.area in ("metrics", "folder") or "metrics.jsonl" in done.text:
        return
    try:
        lines = losses(run_dir)
    except OSError as error:
        yield f"run: finished without metrics: {error}"
        return
    if lines != reference.losses:
        differ = sorted(step for step in {*lines, *reference.losses} if lines.get(step) != reference.losses.get(step))
        yield f"run: metrics.jsonl differs at the steps {differ[:6]}"


def _is_clear(text: str) -> bool:
    """Whether an error with four parts was printed, or the end of a run with its cause."""
    return all(part in text for part in ("why", "fix")) and "Traceback" not in text


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-5:])[:500]


def _walk(folder: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(folder):
        yield from (Path(directory, name) for name in names)
