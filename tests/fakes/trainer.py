"""A trainer that trains nothing: it takes steps, saves checkpoints, and misbehaves as it is told.

python trainer.py RUN_DIR ATTEMPT RESUME_STEP BEHAVIOUR [key=value...]
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from prime_train.checkpoints.layout import write_manifest
from prime_train.core.plans import plan_path
from prime_train.core.rundir import RunDir
from prime_train.events import (
    CheckpointSaved,
    CheckpointUnreadable,
    EventLog,
    Phase,
    Progress,
    StepSkipped,
    TrainerFailed,
    TrainerFinished,
    TrainerStarted,
    TrainerStopped,
)

FOREVER_S = 3600.0
_LAST_STEPS = 10


@dataclass
class Fake:
    run_dir: RunDir
    attempt: int
    step: int
    options: dict[str, str]
    log: EventLog
    stop_signal: list[int] = field(default_factory=list)

    def number(self, name: str, default: float) -> float:
        return float(self.options.get(name, default))

    def save(self) -> None:
        folder = self.run_dir.checkpoint(self.step)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state.bin").write_bytes(bytes(int(self.number("state_bytes", 1000))))
        (folder / ".metadata").write_bytes(b"")
        size_bytes = write_manifest(folder, self.step)
        self.log.append(CheckpointSaved(self.attempt, self.step, size_bytes, 0.0, 0.0))

    def fail(self, cause_class: str, what: str) -> None:
        self.log.append(TrainerFailed(self.attempt, 0, cause_class, what, "because", "do so", "trainer.py:1"))

    def hold(self) -> None:
        """Near the end, wait for the file of the option `waits_for`: an outside fault comes before the end."""
        path, near = self.options.get("waits_for"), int(self.options["max_steps"]) - _LAST_STEPS
        while path and self.step >= near and not Path(path).exists() and not self.asked_to_stop():
            time.sleep(0.01)

    def take_step(self) -> None:
        self.step += 1
        time.sleep(self.number("step_s", 0.005))
        self.log.append(Progress(self.attempt, self.step, 5.0 / self.step, 1000.0, self.step * 64))
        if self.step % int(self.number("save_every", 10)) == 0:
            self.save()

    def takes_save_request(self) -> bool:
        with suppress(FileNotFoundError):
            self.run_dir.save_request(self.attempt).unlink()
            return True
        return False

    def asked_to_stop(self) -> bool:
        return bool(self.stop_signal) or self.run_dir.stop_request(self.attempt).exists()


def misbehave(fake: Fake, behaviour: str) -> None:
    """What happens at the step where it happens; does not come back where the process ends by it."""
    match behaviour:
        case "crash":
            raise RuntimeError(f"boom at step {fake.step}")
        case "raise":
            fake.fail("unknown", f"RuntimeError: boom at step {fake.step}")
            sys.exit(1)
        case "config":
            fake.fail("config", "the tokenizer has no end-of-text token")
            sys.exit(5)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(FOREVER_S)
        case "diverge":  # as soon as there is a plan
            while not plan_path(fake.run_dir.settings, 1).exists() and not fake.asked_to_stop():
                time.sleep(0.01)
            fake.log.append(StepSkipped(fake.attempt, fake.step + 1, math.nan, 1.0, "a loss of nan"))
            fake.fail("config", f"step {fake.step + 1} gave a loss of nan")
            sys.exit(5)
        case "exit0":
            sys.exit(0)
        case "truncate":
            newest = max(int(path.name.split("_")[1]) for path in fake.run_dir.checkpoints.iterdir())
            os.truncate(fake.run_dir.checkpoint(newest) / "state.bin", 10)
            os.kill(os.getpid(), signal.SIGKILL)


def main(misbehave: Callable[[Fake, str], None] = misbehave) -> None:
    path, attempt, resume_step, behaviour, *pairs = sys.argv[1:]
    run_dir = RunDir(Path(path))
    options = dict(pair.split("=", 1) for pair in pairs)
    log = EventLog(run_dir.events, f"trainer-{int(attempt):03d}-rank0")
    fake = Fake(run_dir, int(attempt), int(resume_step), options, log)
    if behaviour == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda number, _: fake.stop_signal.append(number))
    if "orphan" in options:  # a grandchild in a session of its own, whose parent is gone
        orphan = f"import subprocess as s; s.Popen(['sleep', '{FOREVER_S:.0f}'], start_new_session=True)"
        subprocess.run([sys.executable, "-c", orphan], check=True)
    if fake.step in [int(step) for step in options.get("unreadable", "").split(",") if step]:
        log.append(CheckpointUnreadable(fake.attempt, fake.step, "bad bytes"))
        fake.fail("disk", "the checkpoint cannot be read")
        sys.exit(5)
    log.append(TrainerStarted(fake.attempt, os.getpid(), 0, 1, "cpu", "fp32", 1000, 256, fake.step))
    log.append(Phase(fake.attempt, "train"))
    last_step, at_step = int(options["max_steps"]), int(options.get("at_step", 15))
    first_only = options.get("times") == "once" and fake.attempt > 1
    while fake.step < last_step:
        fake.hold()
        if fake.asked_to_stop() and behaviour != "deaf":
            fake.save()
            log.append(TrainerStopped(fake.attempt, fake.step))
            return
        if fake.step >= at_step and not first_only:
            misbehave(fake, behaviour)
        fake.take_step()
        if fake.takes_save_request():
            fake.save()
    fake.save()
    log.append(TrainerFinished(fake.attempt, fake.step, 0.1, str(run_dir.checkpoint(fake.step))))


if __name__ == "__main__":
    main()
