"""`python -m tests.fuzz.bucket_kills`: kills runs that copy their checkpoints, and judges disk and bucket each time.

A case is a run of 400 steps with a checkpoint every 5, a bucket in a folder and up to twenty kills: of the trainer, of
the supervisor, of both, or of the process that copies. After each kill nothing on the disk and in the bucket may count
as complete that is not, the newest backup may not be older than before, and it is restored elsewhere and compared by
hash. Some runs go on without their checkpoints, as on another machine. At the end all is as in an undisturbed run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from prime_train.checkpoints import layout
from prime_train.events import CheckpointBackedUp, read
from tests.fuzz.bucket import JudgedBucket, Truth, list_wrong_checkpoints, read_truth
from tests.fuzz.kills import await_end, find_trainers, judge_end, kill_alone, newest_attempt, show
from tests.fuzz.stage import Stage, kill_tree, reap
from tests.fuzz.templates import COMMAND, Reference, read_reference

STEPS, INTERVAL_STEPS, KILLS = 400, 5, 20
_LIMIT_S = 300.0
_STEP_S = {"FUZZ_STEP_S": "0.05"}
_POLL_S = 0.005
_CONFIG = """
[prime_train.restart]
max_fruitless_attempts = 1000
backoff_s = 0.0

[prime_train.watch]
gpu = "off"
engine = "off"
disk = "off"
host = "off"
preemption = "off"

[prime_train.backup]
delete_after_upload = {deletes}
"""
# A kill comes a while after the start of the run, of the training, of a copy, or after a copy is complete.
_STARTING, _TRAINING, _COPYING, _COPIED = range(4)


@dataclass
class Played:
    """The kills of a case that were done, and what was wrong."""

    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    complete: dict[int, set[int]] = field(default_factory=dict)  # steps on the disk, by the newest attempt
    restored: int = 0


def write(stage: Stage, keep_last: int, deletes: str = "false") -> None:
    stage.write_config(STEPS)
    config = stage.case / "run.toml"
    text = config.read_text(encoding="utf-8")
    checkpoint = f"interval_steps = {INTERVAL_STEPS}\nkeep_last = {keep_last}\n"
    text = text.replace("interval_steps = 4\n", checkpoint) + _CONFIG.format(deletes=deletes)
    config.write_text(text, encoding="utf-8")


def undisturbed(stage: Stage) -> tuple[Reference, Truth]:
    write(stage, STEPS)
    ended = stage.run(*COMMAND, limit_s=_LIMIT_S)
    assert ended.code == 0, ended.text
    stage.case.rename(stage.templates / "whole")
    truth = read_truth(stage.templates / "whole" / "runs" / "small" / "checkpoints")
    assert len(truth) == STEPS // INTERVAL_STEPS
    return read_reference(stage, "whole"), truth


def play(stage: Stage, reference: Reference, truth: Truth, chance: random.Random, most_kills: int) -> Played:
    write(stage, chance.choice((2, STEPS)), chance.choice(("true", "false")))
    bucket, played = JudgedBucket(stage.case / "bucket", stage.case / "aside", truth), Played()
    with open(stage.case / "run.toml", "a", encoding="utf-8") as file:
        file.write(bucket.config)
    pid = stage.start(*COMMAND, **_STEP_S)
    while len(played.done) < most_kills and _await_moment(stage, pid, played, chance):
        target = chance.choice(("trainer", "supervisor", "both", "copier"))
        ends_supervisor = target in ("supervisor", "both")
        played.complete[newest_attempt(stage)] = _steps(stage)
        victims = find_copiers(pid) if target == "copier" else find_trainers(pid)
        if target != "supervisor" and not victims:
            continue
        if target != "supervisor":
            with contextlib.suppress(psutil.NoSuchProcess):
                chance.choice(victims).kill()
        if ends_supervisor:
            kill_alone(pid)
        moves = ends_supervisor and chance.random() < 0.3
        played.done.append(target + " without its checkpoints" * moves)
        played.problems += _judge_kill(stage, bucket, played, truth, moves=moves)
        if ends_supervisor:
            pid = stage.start(*COMMAND, **_STEP_S)
    code = await_end(pid, _LIMIT_S)
    played.problems += judge_end(stage, reference, played.complete, code)
    played.problems += bucket.judge(is_quiet=True)
    if bucket.newest != reference.last_step:
        said = [record.event for record in read(stage.run_dir.events)]
        why = [one.problem for one in said if isinstance(one, CheckpointBackedUp) and one.problem]
        played.problems.append(f"the newest backup of the finished run is step {bucket.newest}: {'; '.join(why)}")
    played.restored = bucket.restored
    return played


def _await_moment(stage: Stage, pid: int, played: Played, chance: random.Random) -> bool:
    """Wait for a moment of this life of the run. False where it ends before."""
    kind = chance.choices((_STARTING, _TRAINING, _COPYING, _COPIED), weights=(1, 2, 3, 3))[0]
    # After the death of the copier the attempt goes on, and no other copy begins for half a minute.
    if kind == _STARTING or played.done[-1:] == ["copier"]:
        return await_end(pid, chance.uniform(0.0, 1.0)) is None
    after, copies = max(played.complete, default=0), _copies(stage)
    while await_end(pid, _POLL_S) is None:
        is_there = {
            _TRAINING: lambda: any(int(path.name.split("-")[1]) > after for path in _events(stage)),
            _COPYING: lambda: bool(find_copiers(pid)),
            _COPIED: lambda: bool(_copies(stage) - copies),
        }
        if is_there[kind]():
            return await_end(pid, chance.uniform(0.0, 0.4)) is None
    return False


def _events(stage: Stage) -> list[Path]:
    return list(stage.run_dir.events.glob("trainer-*"))


def _copies(stage: Stage) -> set[str]:
    return {path.parent.name for path in (stage.case / "bucket").glob("*/*/COMPLETE.json")}


def _judge_kill(stage: Stage, bucket: JudgedBucket, played: Played, truth: Truth, *, moves: bool) -> Iterator[str]:
    """`moves`: the run goes on where its checkpoints are not, as on another machine."""
    if moves:
        yield from (f"left running: {line}" for line in reap(set()))
        if STEPS not in _steps(stage):  # the events of a run that is over would call it finished without it
            shutil.rmtree(stage.run_dir.checkpoints, ignore_errors=True)
    when = f"after kill {len(played.done)} ({played.done[-1]})"
    yield from (f"{when}: {text}" for text in list_wrong_checkpoints(stage.run_dir.checkpoints, truth))
    yield from (f"{when}: {text}" for text in bucket.judge(is_quiet=moves))
    if moves and STEPS not in _steps(stage):
        played.complete[max(played.complete)] = {bucket.newest} - {0}


def _steps(stage: Stage) -> set[int]:
    return {found.step for found in layout.scan(stage.run_dir.checkpoints) if found.complete}


def find_copiers(pid: int) -> list[psutil.Process]:
    """The processes that copy checkpoints into the bucket."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for process in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if any(argument.endswith("backup_program.py") for argument in process.cmdline()):
                    found.append(process)
    return found


def run(stage: Stage, first_seed: int, kills: int, most_per_case: int) -> int:
    """Play cases until so many kills were done. Returns the number of failed cases."""
    stage.prepare()
    reference, truth = undisturbed(stage)
    began_s = time.monotonic()
    done: Counter[str] = Counter()
    failed = cases = restored = 0
    while done.total() < kills:
        seed = first_seed + cases
        played = play(stage, reference, truth, random.Random(seed), min(most_per_case, kills - done.total()))
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error, OSError):
                kill_tree(child.pid)
        done.update(played.done)
        cases, failed, restored = cases + 1, failed + bool(played.problems), restored + played.restored
        for problem in played.problems:
            show(f"{seed} {', '.join(played.done)}\n    {problem}")
        show(f"{done.total()} of {kills} kills in {time.monotonic() - began_s:.0f} s, {failed} of {cases} cases failed")
    summary = {"kills": done.total(), "cases": cases, "seed": first_seed, "failed_cases": failed, "restored": restored}
    show(json.dumps(summary | {"killed": dict(done), "wall_s": round(time.monotonic() - began_s, 1)}))
    return failed


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.bucket_kills", description="Kill runs with backups.")
    parser.add_argument("--seed", type=int, default=0, help="of the first case; the next case has the next seed")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--per-case", type=int, default=KILLS, help="most kills of one run")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bucket-kills-") as temporary:
        stage = Stage(Path(temporary).resolve(), torch=False)
        return 1 if run(stage, given.seed, given.kills, given.per_case) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
