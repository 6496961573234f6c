"""Writes run directories by hand: fixed events at fixed times, like those of a supervisor and a trainer."""

import contextlib
import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from prime_train.checkpoints.layout import write_manifest
from prime_train.config import detect
from prime_train.core.rundir import RunDir
from prime_train.events import (
    AttemptEnded,
    CheckpointSaved,
    ChildStarted,
    Evaluated,
    Event,
    LaunchAsked,
    Phase,
    Progress,
    Record,
    RunClosed,
    RunOpened,
    Sampled,
    TrainerFinished,
    TrainerStarted,
    encode,
)
from prime_train.spec import to_json

BEGAN_S = 1_790_000_000.0
GONE = 2**22 + 1  # beyond /proc/sys/kernel/pid_max of every Linux: no such process

# Second since the start, writer, event: a run that is killed at step 60 and resumes from step 50.
Timeline = Sequence[tuple[float, str, Event]]
FIRST_ATTEMPT: Timeline = (
    (0.0, "supervisor", RunOpened("small", GONE, 100, "0.1.0")),
    (0.1, "supervisor", LaunchAsked(1, 0)),
    (0.2, "supervisor", ChildStarted(1, "trainer", GONE, 1, "/nowhere/trainer.log")),
    (2.0, "trainer-001-rank0", TrainerStarted(1, GONE, 0, 1, "cpu", "fp32", 4_300_000, 4096, 0)),
    (2.1, "trainer-001-rank0", Phase(1, "train")),
    (3.0, "trainer-001-rank0", Progress(1, 10, 7.5, 4000.0, 20_480)),
    (8.0, "trainer-001-rank0", Progress(1, 50, 5.5, 4100.0, 102_400)),
    (8.5, "trainer-001-rank0", Evaluated(1, 50, 5.75, 4096)),
    (8.6, "trainer-001-rank0", Sampled(1, 50, "import ", "os os os")),
    (9.0, "trainer-001-rank0", CheckpointSaved(1, 50, 50_000_000, 0.02, 0.4)),
    (10.0, "trainer-001-rank0", Progress(1, 60, 5.25, 4200.0, 122_880)),
)
DEATH: Timeline = (
    (
        12.0,
        "supervisor",
        AttemptEnded(
            1, -9, "failed", "signal", "killed by signal 9 (SIGKILL)", "something outside sent it", "", "", 50
        ),
    ),
)
SECOND_ATTEMPT: Timeline = (
    (13.0, "supervisor", LaunchAsked(2, 50, ("step_60: no COMPLETE.json: the save did not finish",))),
    (13.1, "supervisor", ChildStarted(2, "trainer", GONE, 2, "/nowhere/trainer.log")),
    (15.0, "trainer-002-rank0", TrainerStarted(2, GONE, 0, 1, "cpu", "fp32", 4_300_000, 4096, 50)),
    (15.1, "trainer-002-rank0", Phase(2, "train")),
    (16.0, "trainer-002-rank0", Progress(2, 60, 5.25, 4000.0, 122_880)),
    (22.0, "trainer-002-rank0", Progress(2, 100, 4.5, 4100.0, 204_800)),
)
END: Timeline = (
    (22.4, "trainer-002-rank0", Evaluated(2, 100, 4.625, 4096)),
    (22.5, "trainer-002-rank0", Sampled(2, 100, "import ", "sys\n```\nimport os")),
    (23.0, "trainer-002-rank0", CheckpointSaved(2, 100, 50_000_000, 0.01, 0.3)),
    (23.1, "trainer-002-rank0", TrainerFinished(2, 100, 4.5, "/nowhere/checkpoints/step_100")),
    (24.0, "supervisor", AttemptEnded(2, 0, "finished", "", "", "", "", "", 100)),
    (24.1, "supervisor", RunClosed("finished", 0, "step 100 of 100")),
)
WHOLE_LIFE: Timeline = (*FIRST_ATTEMPT, *DEATH, *SECOND_ATTEMPT, *END)


def records(timeline: Timeline) -> list[Record]:
    """The records of a timeline, numbered per writer."""
    counts: dict[str, int] = {}
    result = []
    for second, writer, event in timeline:
        counts[writer] = counts.get(writer, -1) + 1
        result.append(Record(BEGAN_S + second, writer, counts[writer], event))
    return result


def write_run(path: Path, timeline: Timeline) -> RunDir:
    """A run directory with these events."""
    run_dir = RunDir(path)
    write_events(run_dir, records(timeline))
    return run_dir


def write_config(run_dir: RunDir, text: str) -> None:
    """The config of a run, as text and as it was read."""
    found = detect.read(text, "run.toml").run
    assert found is not None
    run_dir.config.write_text(text, encoding="utf-8")
    run_dir.resolved.write_text(to_json(found), encoding="utf-8")


def write_events(run_dir: RunDir, found: Iterable[Record]) -> float:
    """Append each record to the file of its writer; there may be millions. Returns the time of the last one."""
    run_dir.events.mkdir(parents=True, exist_ok=True)
    time_s = BEGAN_S
    with contextlib.ExitStack() as stack:
        files: dict[str, TextIO] = {}
        for record in found:
            if record.writer not in files:
                path = run_dir.events / f"{record.writer}.jsonl"
                files[record.writer] = stack.enter_context(open(path, "a", encoding="utf-8"))
            files[record.writer].write(encode(record) + "\n")
            time_s = record.time_s
    return time_s


def write_checkpoint(run_dir: RunDir, step: int, *, complete: bool = True) -> Path:
    """A checkpoint folder with two small files; without a manifest if it is incomplete."""
    folder = run_dir.checkpoint(step)
    folder.mkdir(parents=True)
    (folder / "model.distcp").write_bytes(bytes(1000))
    (folder / ".metadata").write_bytes(b"m" * min(step, 100))
    if complete:
        write_manifest(folder, step)
    return folder


TRACE = "step_5.trace.json.gz"


def write_trace(run_dir: RunDir) -> bytes:
    """A packed trace of step 5, as the trainer leaves it. Returns its bytes."""
    run_dir.profile.mkdir(parents=True, exist_ok=True)
    content = gzip.compress(b'{"traceEvents": []}')
    (run_dir.profile / TRACE).write_bytes(content)
    return content


def write_reward_metrics(run_dir: RunDir, steps: int, warmup_steps: int) -> None:
    """metrics.jsonl whose reward rises to 1 after the warm-up, whose lines have none."""
    lines = []
    for step in range(1, steps + 1):
        line = json.loads(_metrics_line(step))
        if step > warmup_steps:
            reward = (step - warmup_steps) / (steps - warmup_steps)
            line |= {"reward": reward, "answer_tokens": 6.0, "mismatch_kl": 1e-6, "behind_steps": 1.0, "rollouts": 64}
            line |= {"truncated": 2, "failed": 1, "too_old": 0, "groups": 8, "zero_groups": 1, "rollouts_s": 0.5}
        lines.append(json.dumps(line))
    run_dir.metrics.write_text("\n".join((*lines, "")), encoding="utf-8")


def write_metrics(run_dir: RunDir, steps: int) -> None:
    """metrics.jsonl with a loss that falls from 8.3; step 7 occurs twice and the last line is incomplete."""
    lines = [_metrics_line(step) for step in [*range(1, 8), 7, *range(8, steps + 1)]]
    run_dir.metrics.write_text("".join(f"{line}\n" for line in lines) + '{"step": 9', encoding="utf-8")


def _metrics_line(step: int) -> str:
    return json.dumps(
        {
            "step": step,
            "loss": 8.3 - 0.03 * step,
            "lr": 1e-3,
            "grad_norm": 1.0,
            "tokens": 2048,
            "tokens_seen": 2048 * step,
            "tokens_per_s": 4000.0,
            "step_s": 0.5,
            "data_s": 0.0625,
            "forward_backward_s": 0.25,
            "optimizer_s": 0.125,
            "checkpoint_s": 0.0625,
            "peak_memory_gib": 0.75,
            "mfu": None,
        }
    )
