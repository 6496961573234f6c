"""Makes the trainer's kind of events out of what prime-rl says and leaves on the disk.

Pure: a memory and a sample give a memory and events.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prime_train.checkpoints.layout import Checkpoint
from prime_train.events import (
    CheckpointDeleted,
    CheckpointSaved,
    CheckpointStarted,
    Event,
    Phase,
    Progress,
    TrainerFinished,
)
from prime_train.programs.prime_rl.lines import (
    Batch,
    Ended,
    FromScratch,
    Milestone,
    PartFailed,
    Row,
    Said,
    Saving,
    Stepped,
    ToldToEnd,
    Traceback,
)
from prime_train.spec import ENDLESS_STEPS


@dataclass(frozen=True, slots=True)
class Limits:
    """How long to wait before something counts as wrong. Source of the first: prime-rl 2026-08 gives its own shutdown
    300 s (orchestrator, SHUTDOWN_TIMEOUT_S), and then ends by itself."""

    tail_quiet_s: float = 330.0  # of every log, after the trainer has finished
    gone_s: float = 1.5  # of a server: within a second the launcher says of one that failed that it did
    env_error_s: float = 120.0  # without a rollout, after a traceback in an environment server's log
    phase_every_s: float = 10.0  # between two tellings of how a batch fills


@dataclass(frozen=True, slots=True)
class Run:
    """What is known of the run beforehand."""

    attempt: int
    max_steps: int
    resume_step: int = 0
    has_orchestrator: bool = True


@dataclass(frozen=True, slots=True)
class Sample:
    """What came in since the sample before. Times are seconds of one clock that only goes forward."""

    now_s: float
    heard: tuple[tuple[str, Said], ...] = ()  # (who wrote it: "trainer", "env:wordle"; what it says)
    rows: tuple[Row, ...] = ()
    checkpoints: tuple[Checkpoint, ...] | None = None  # None: not looked at this time
    servers: tuple[str, ...] | None = None  # that run now: "inference", "env server wordle"; None: not looked
    expected: tuple[str, ...] = ()  # servers that were started, were they too short-lived to be seen
    written_s: float = 0.0  # when any of its files was written to last


@dataclass(frozen=True, slots=True)
class Memory:
    """What is kept from sample to sample."""

    began: bool = False
    step: int = -1  # the last one told
    loss: float = math.nan
    tokens_per_s: float = 0.0
    tokens_seen: int = 0
    pending: Row | None = None  # rows of a step that is not closed
    has_rows: bool = False  # metrics.jsonl is there: lines of the log say the same again
    batch: Batch | None = None
    phase_told_s: float = -math.inf
    is_saving: bool = False  # the trainer has said so, and neither a step nor a whole checkpoint has followed
    saving: tuple[tuple[int, float], ...] = ()  # steps whose folder is there and not whole, and since when
    save_s: tuple[tuple[int, float], ...] = ()  # what the trainer says that it waited
    whole: tuple[int, ...] = ()
    newest: str = ""  # the path of the newest whole one
    there: tuple[int, ...] = ()
    ended: tuple[str, ...] = ()
    ended_s: float | None = None  # when the trainer said so
    finished: bool = False
    failed: PartFailed | None = None  # the first that the launcher tells of
    told_to_end: bool = False
    scratch: str = ""
    servers: tuple[str, ...] = ()  # all that were seen
    gone: tuple[tuple[str, float], ...] = ()  # since when each of them is not
    env_errors: tuple[tuple[str, float], ...] = ()  # the latest traceback of each environment server
    moved_s: float = -math.inf  # the last step or rollout


Told = tuple[Memory, tuple[Event, ...]]
_TRAINERS = ("trainer", "launcher")  # `sft` of 2026-01 is the trainer itself, and `rl` shows the trainer's log
_NOTHING: tuple[Event, ...] = ()


def take(run: Run, memory: Memory, sample: Sample, limits: Limits) -> Told:
    """The memory after one more sample, and the events that it gives rise to."""
    events: list[Event] = []
    if memory.moved_s == -math.inf:
        memory = replace(memory, moved_s=sample.now_s)
    for who, what in sample.heard:
        memory, told = _hear(run, memory, who, what, sample.now_s, limits)
        events += told
    for row in sample.rows:
        memory, told = _row(run, memory, row, sample.now_s)
        events += told
    if sample.checkpoints is not None:
        memory, told = _saved(run, memory, sample.checkpoints, sample.now_s)
        events += told
    if sample.servers is not None:
        memory = _servers(memory, sample.servers, sample.expected, sample.now_s)
    memory, told = _end(run, memory, sample, limits)
    return memory, (*events, *told)


# --- steps and phases ------------------------------------------------------------------------------


def _hear(run: Run, memory: Memory, who: str, what: Said, now_s: float, limits: Limits) -> Told:
    match what:
        case Stepped(step=step, loss=loss, tokens_per_s=rate) if not memory.has_rows and who in _TRAINERS:
            return _stepped(run, memory, Row(step, math.nan if loss is None else loss, rate), now_s)
        case Batch():
            return _batch(run, memory, what, now_s, limits)
        case Saving(step=step) if step is None or (step >= memory.step and step not in memory.whole):
            told = Phase(run.attempt, "checkpoint", "" if step is None else f"step {step}")
            return replace(memory, is_saving=True), (told,)
        case Milestone(text=text) if memory.step < 0:
            return memory, (Phase(run.attempt, "setup", f"{who}: {text}"),)
        case Ended(who="trainer"):
            memory = replace(memory, ended=_with(memory.ended, "trainer"), ended_s=now_s)
            waits = (Phase(run.attempt, "evaluate", "the trainer has finished; the rest of it ends"),)
            return memory, waits if run.has_orchestrator else ()
        case Ended(who=ended):
            return replace(memory, ended=_with(memory.ended, ended)), ()
        case PartFailed():
            return replace(memory, failed=memory.failed or what), ()
        case ToldToEnd():
            return replace(memory, told_to_end=True), ()
        case FromScratch(folder=folder) if run.resume_step:
            return replace(memory, scratch=folder), ()
        case Traceback() if who.startswith("env"):
            return replace(memory, env_errors=_put(memory.env_errors, who, now_s)), ()
        case _:
            return memory, ()


def _batch(run: Run, memory: Memory, batch: Batch, now_s: float, limits: Limits) -> Told:
    """A batch that fills is progress, and the only sign of it in a step that takes an hour."""
    before = memory.batch
    if before is not None and batch.wanted == before.wanted and batch.ready == before.ready:
        return memory, ()
    memory = replace(memory, batch=batch, moved_s=now_s)
    if now_s - memory.phase_told_s < limits.phase_every_s:
        return memory, ()
    told = Phase(run.attempt, "train", f"{batch.ready} of {batch.wanted} rollouts")
    return replace(memory, phase_told_s=now_s), (told,)


def _row(run: Run, memory: Memory, row: Row, now_s: float) -> Told:
    """Rows of a step are put together until its last one, or one of a later step."""
    memory = replace(memory, has_rows=True)
    if row.tokens_seen is not None:
        memory = replace(memory, tokens_seen=max(memory.tokens_seen, row.tokens_seen))
    if row.save_s:
        memory = replace(memory, save_s=(*memory.save_s, (row.step, row.save_s))[-4:])
    if not (row.is_last or row.loss is not None or row.tokens_per_s is not None):
        return memory, ()
    pending, told = memory.pending, _NOTHING
    if pending is not None and row.step != pending.step:
        memory, told = _stepped(run, replace(memory, pending=None), pending, now_s)
        pending = None
    merged = row if pending is None else _merged(pending, row)
    if not merged.is_last:
        return replace(memory, pending=merged), told
    memory, more = _stepped(run, replace(memory, pending=None), merged, now_s)
    return memory, (*told, *more)


def _merged(one: Row, other: Row) -> Row:
    return Row(
        one.step,
        other.loss if other.loss is not None else one.loss,
        other.tokens_per_s if other.tokens_per_s is not None else one.tokens_per_s,
        is_last=one.is_last or other.is_last,
    )


def _stepped(run: Run, memory: Memory, row: Row, now_s: float) -> Told:
    """A step that was told before (a resume writes some of them again) is not told twice."""
    if row.step <= memory.step:
        return memory, ()
    loss = math.nan if row.loss is None else row.loss
    rate = memory.tokens_per_s if row.tokens_per_s is None else row.tokens_per_s
    memory = replace(memory, step=row.step, loss=loss, tokens_per_s=rate, moved_s=now_s, is_saving=False)
    if run.resume_step and row.step < run.resume_step - 1:
        memory = replace(memory, scratch=memory.scratch or f"step {row.step} came first")
    return memory, (Progress(run.attempt, row.step, loss, rate, memory.tokens_seen),)


# --- checkpoints -----------------------------------------------------------------------------------


def _saved(run: Run, memory: Memory, found: Sequence[Checkpoint], now_s: float) -> Told:
    """What has become whole, what is being written, what was deleted. What was there at the start is old news."""
    whole = {checkpoint.step: checkpoint for checkpoint in found if checkpoint.complete}
    there = {checkpoint.step for checkpoint in found}
    if not memory.began:
        return replace(memory, began=True, **_folders(whole, there)), ()
    since = dict(memory.saving)
    events: list[Event] = []
    for step in sorted(there - whole.keys() - since.keys() - set(memory.there)):
        since[step] = now_s
        events.append(CheckpointStarted(run.attempt, step))
    for step in sorted(whole.keys() - set(memory.whole)):
        write_s = now_s - since.pop(step, now_s)
        # A save of prime-rl holds the training up: where the trainer does not say for how long, it is all of it.
        stall_s = dict(memory.save_s).get(step, write_s)
        events.append(CheckpointSaved(run.attempt, step, whole[step].size_bytes, round(stall_s, 3), round(write_s, 3)))
    if memory.is_saving and events and isinstance(events[-1], CheckpointSaved):
        memory = replace(memory, is_saving=False)
        events.append(Phase(run.attempt, "train"))  # else a hang that follows would be given a save's time
    gone = "it is gone from the disk: superseded, as ckpt.keep_last says"
    events.extend(CheckpointDeleted(run.attempt, step, gone) for step in sorted(set(memory.whole) - there))
    left = tuple((step, at) for step, at in since.items() if step in there)
    return replace(memory, saving=left, **_folders(whole, there)), tuple(events)


def _folders(whole: Mapping[int, Checkpoint], there: set[int]) -> dict[str, Any]:
    newest = str(whole[max(whole)].path) if whole else ""
    return {"whole": tuple(sorted(whole)), "there": tuple(sorted(there)), "newest": newest}


def newest_whole(memory: Memory) -> int:
    return memory.whole[-1] if memory.whole else 0


# --- the end ---------------------------------------------------------------------------------------


def _end(run: Run, memory: Memory, sample: Sample, limits: Limits) -> Told:
    """It has finished when the launcher says so, or every part that ends by itself; or where only silence follows."""
    if memory.finished or memory.failed is not None:
        return memory, ()
    parts = {"trainer", "orchestrator"} if run.has_orchestrator else {"trainer"}
    all_ended = "launcher" in memory.ended or parts <= set(memory.ended)
    quiet_s = sample.now_s - max(sample.written_s, memory.ended_s or 0.0)
    wedged = memory.ended_s is not None and quiet_s >= limits.tail_quiet_s
    if not (all_ended or wedged):
        return memory, ()
    return finished(run, memory)


def finished(run: Run, memory: Memory) -> Told:
    """The trainer's last word. It ends at max_steps and nowhere else."""
    step = run.max_steps if run.max_steps < ENDLESS_STEPS else max(memory.step, newest_whole(memory), 0)
    return replace(memory, finished=True), (TrainerFinished(run.attempt, step, memory.loss, memory.newest),)


# --- servers ---------------------------------------------------------------------------------------


def _servers(memory: Memory, running: Sequence[str], expected: Sequence[str], now_s: float) -> Memory:
    seen = tuple(sorted({*memory.servers, *running, *expected}))
    gone = {server: dict(memory.gone).get(server, now_s) for server in seen if server not in running}
    return replace(memory, servers=seen, gone=tuple(gone.items()))


def _with(words: tuple[str, ...], word: str) -> tuple[str, ...]:
    return words if word in words else (*words, word)


def _put(pairs: tuple[tuple[str, float], ...], key: str, value: float) -> tuple[tuple[str, float], ...]:
    return tuple((dict(pairs) | {key: value}).items())
