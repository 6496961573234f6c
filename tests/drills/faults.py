"""Small real runs, and five ways to harm one while it trains. Judges nothing: the tests and the benchmark do."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from prime_train.checkpoints import layout
from prime_train.core.process_id import Identity, identify
from prime_train.events import ChildStarted, HangFound, Progress, Record, TrainerFailed, read
from prime_train.supervise.core.state import State
from tests.drills.scene import DEADLINE_S, PROGRAM, Scene, trainer

INTERVAL_STEPS = 10
MAX_STEPS = 100
# For the drills of a silent trainer. A step takes 20 ms, but with twenty drills at a time on a slow machine it may take
# 30 s. Within the last policy.SUSPECT_S of the limit a child looks what the trainer does; with a limit below that, one
# would start at each sign of life.
SILENCE_LIMIT_S = 40.0

# Two documents to a buffer: a trainer whose loader worker is gone soon asks for a buffer that does not come.
CONFIG = f"""
[run]
name = "drill"
max_steps = {MAX_STEPS}

[model]
layers = 2
hidden_size = 64
heads = 2

[data]
ctx_tokens = 128
loader_workers = 1
pack_buffer_docs = 2

[[data.sources]]
kind = "files"
path = "text.jsonl"

[tokenizer]
vocab_size = 512

[batch]
micro_batch = 4

[checkpoint]
interval_steps = {INTERVAL_STEPS}

[eval]
batches = 1

[prime_train.heartbeat]
step_limit_s = 900
"""

# A tokenizer for so little text is trained in no time; that of the standard library takes as long as a drill.
TEXT = "".join(
    json.dumps({"text": " ".join(f"{number} plus {other} is {number + other}" for other in range(40))}) + "\n"
    for number in range(400)
)


def drill_in(folder: Path, cache: Path, *, is_silent: bool = False) -> Scene:
    """`prime-train run run.toml`. `cache` may be shared: the tokenizer is trained once. `is_silent`: the fault is found
    by its silence."""
    variables = {"PRIME_TRAIN_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    config = CONFIG.replace("step_limit_s = 900", f"step_limit_s = {SILENCE_LIMIT_S}") if is_silent else CONFIG
    return Scene(folder, (str(PROGRAM), "run", "run.toml"), {"run.toml": config, "text.jsonl": TEXT}, variables)


def until_trained(drill: Scene, checkpoints: int) -> State:
    """The state once the first attempt has saved so many checkpoints and gone on a little."""
    saved = checkpoints * INTERVAL_STEPS
    return drill.until(lambda state: state.newest_complete >= saved and state.step > state.newest_complete)


# --- five faults: each harms the run once and gives the time of the death ---------------------------


def kill_trainer(drill: Scene, _supervisor: int) -> float:
    pid = trainer(until_trained(drill, 1))
    os.kill(pid, signal.SIGKILL)
    return time.time()


def raise_in_trainer(drill: Scene, _supervisor: int) -> float:
    """Kill its loader worker: the trainer raises as it asks for the next buffer."""
    (worker,) = psutil.Process(trainer(until_trained(drill, 1))).children()
    worker.kill()
    drill.until(lambda _: bool(failures(drill)))
    return failures(drill)[0].time_s


def hang_trainer(drill: Scene, _supervisor: int) -> float:
    """Stop it, so that it is silent. The death is the end of the silence that it may keep."""
    os.kill(trainer(until_trained(drill, 1)), signal.SIGSTOP)
    drill.until(lambda _: bool(hangs(drill)))
    (found,) = hangs(drill)
    assert isinstance(found.event, HangFound)
    return found.time_s - (found.event.silent_s - found.event.limit_s)


def truncate_newest(drill: Scene, _supervisor: int) -> float:
    """Cut the largest file of the newest complete checkpoint, then kill the trainer. It is stopped meanwhile."""
    pid = trainer(until_trained(drill, 2))
    os.kill(pid, signal.SIGSTOP)
    newest = layout.newest_complete(drill.run_dir.checkpoints)
    assert newest is not None
    largest = max((file for file in newest.path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    drill.marks.damage(newest.step)
    os.truncate(largest, largest.stat().st_size // 2)
    os.kill(pid, signal.SIGKILL)
    return time.time()


def kill_supervisor(drill: Scene, supervisor: int) -> float:
    """The trainer ends with it. Someone has to give the command again."""
    ended = identify(trainer(until_trained(drill, 1)))
    os.kill(supervisor, signal.SIGKILL)
    died_s = time.time()
    assert ended is not None
    await_end(ended)
    return died_s


Fault = Callable[[Scene, int], float]

FAULTS: dict[str, Fault] = {
    "the trainer is killed": kill_trainer,
    "the trainer raises": raise_in_trainer,
    "the trainer hangs": hang_trainer,
    "the newest checkpoint is truncated": truncate_newest,
    "the supervisor is killed": kill_supervisor,
}


# --- what the events tell of it ---------------------------------------------------------------------


def failures(drill: Scene) -> list[Record]:
    return [record for record in read(drill.run_dir.events) if isinstance(record.event, TrainerFailed)]


def hangs(drill: Scene) -> list[Record]:
    return [record for record in read(drill.run_dir.events) if isinstance(record.event, HangFound)]


def started_s(drill: Scene, attempt: int) -> float:
    """When the trainer of this attempt was started."""
    found = (r for r in read(drill.run_dir.events) if isinstance(r.event, ChildStarted) and r.event.attempt == attempt)
    return next(found).time_s


def stepped_s(drill: Scene, attempt: int) -> float:
    """When this attempt had taken its first step."""
    found = (r for r in read(drill.run_dir.events) if isinstance(r.event, Progress) and r.event.attempt == attempt)
    return next(found).time_s


def await_end(process: Identity) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while process.alive:
        assert time.monotonic() < give_up_s, f"{process} lives"
        time.sleep(0.01)
