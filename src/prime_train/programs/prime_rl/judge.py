"""Derives the trainer's kinds of events from prime-rl's logs, metrics and checkpoints.

Pure: a memory and a sample give a memory and events.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.events import (
    CheckpointSaved,
    Event,
    Phase,
    Progress,
    TrainerFinished,
)
from prime_train.programs.prime_rl import lines
from prime_train.programs.seen_checkpoints import SeenCheckpoints, compare
from prime_train.spec import ENDLESS_STEPS


@dataclass(frozen=True, slots=True)
class PrimeRlLimits:
    """How long to wait before a state counts as wrong.

    `tail_quiet_s`: prime-rl 2026-08 gives its own shutdown 300 s (orchestrator, SHUTDOWN_TIMEOUT_S), and then ends.
    """

    tail_quiet_s: float = 330.0  # without a new line in any log, after the trainer has finished
    gone_s: float = 1.5  # without the server: the launcher reports a failed server within a second
    env_error_s: float = 120.0  # without a rollout, after a traceback in an environment server's log
    phase_every_s: float = 10.0  # between two reports of how a batch fills


@dataclass(frozen=True, slots=True)
class KnownPrimeRlRun:
    """The facts about the run that are known before it starts."""

    attempt: int
    max_steps: int
    resume_step: int = 0
    has_orchestrator: bool = True


@dataclass(frozen=True, slots=True)
class PrimeRlSample:
    """The input since the last sample. Times are seconds of a monotonic clock."""

    now_s: float
    messages: tuple[tuple[str, lines.Message], ...] = ()  # each with its part: "trainer", "env server wordle"
    rows: tuple[lines.MetricsRow, ...] = ()
    checkpoints: tuple[SavedCheckpoint, ...] | None = None  # None: not read this time
    servers: tuple[str, ...] | None = None  # that run now: "inference", "env server wordle"; None: not read
    expected: tuple[str, ...] = ()  # servers that were started, even if they ended too soon to be seen
    written_s: float = 0.0  # the last write to any of its files


@dataclass(frozen=True, slots=True)
class PrimeRlHistory:
    """What is kept from sample to sample."""

    step: int = -1  # the last one reported
    loss: float = math.nan
    tokens_per_s: float = 0.0
    tokens_seen: int = 0
    pending: lines.MetricsRow | None = None  # merged rows of an open step
    has_rows: bool = False  # metrics.jsonl exists, so the steps in the logs are ignored
    batch: lines.BatchReady | None = None
    phase_reported_s: float = -math.inf
    is_saving: bool = False  # the trainer has started a save, and neither a step nor a complete checkpoint has followed
    save_s: tuple[tuple[int, float], ...] = ()  # the seconds that the trainer reports for a save
    saved: SeenCheckpoints = SeenCheckpoints()  # noqa: RUF009 - frozen
    ended: tuple[str, ...] = ()
    ended_s: float | None = None  # when the trainer reported its end
    finished: bool = False
    failed: lines.PartFailed | None = None  # the first one that the launcher reports
    got_signal: bool = False
    scratch: str = ""
    servers: tuple[str, ...] = ()  # all servers seen so far
    gone: tuple[tuple[str, float], ...] = ()  # missing servers, and since when
    env_errors: tuple[tuple[str, float], ...] = ()  # of each server: its first traceback since moved_s
    moved_s: float = -math.inf  # the last step or rollout


Result = tuple[PrimeRlHistory, tuple[Event, ...]]
_TRAINERS = ("trainer", "launcher")  # `sft` of 2026-01 is the trainer itself, and `rl` shows the trainer's log
_NOTHING: tuple[Event, ...] = ()


def take(run: KnownPrimeRlRun, memory: PrimeRlHistory, sample: PrimeRlSample, limits: PrimeRlLimits) -> Result:
    """The memory after one more sample, and its events."""
    events: list[Event] = []
    if memory.moved_s == -math.inf:
        memory = replace(memory, moved_s=sample.now_s)
    for part, message in sample.messages:
        memory, more = _add_message(run, memory, part, message, sample.now_s, limits)
        events += more
    for row in sample.rows:
        memory, more = _add_row(run, memory, row, sample.now_s)
        events += more
    if sample.checkpoints is not None:
        memory, more = _add_checkpoints(run, memory, sample.checkpoints, sample.now_s)
        events += more
    if sample.servers is not None:
        memory = _add_servers(memory, sample.servers, sample.expected, sample.now_s)
    memory, more = _judge_end(run, memory, sample, limits)
    return memory, (*events, *more)


# --- steps and phases ------------------------------------------------------------------------------


def _add_message(
    run: KnownPrimeRlRun, memory: PrimeRlHistory, part: str, message: lines.Message, now_s: float, limits: PrimeRlLimits
) -> Result:
    match message:
        case lines.Stepped(step=step, loss=loss, tokens_per_s=rate) if not memory.has_rows and part in _TRAINERS:
            return _add_step(run, memory, lines.MetricsRow(step, math.nan if loss is None else loss, rate), now_s)
        case lines.BatchReady():
            return _add_batch(run, memory, message, now_s, limits)
        case lines.SaveBegun(step=step) if step is None or (step >= memory.step and step not in memory.saved.whole):
            phase = Phase(run.attempt, "checkpoint", "" if step is None else f"step {step}")
            return replace(memory, is_saving=True), (phase,)
        case lines.Milestone(text=text) if memory.step < 0:
            return memory, (Phase(run.attempt, "setup", f"{part}: {text}"),)
        case lines.Ended(who="trainer"):
            memory = replace(memory, ended=_add(memory.ended, "trainer"), ended_s=now_s)
            waits = (Phase(run.attempt, "evaluate", "the trainer has finished; the other parts end"),)
            return memory, waits if run.has_orchestrator else ()
        case lines.Ended(who=ended):
            return replace(memory, ended=_add(memory.ended, ended)), ()
        case lines.PartFailed():
            return replace(memory, failed=memory.failed or message), ()
        case lines.GotSignal():
            return replace(memory, got_signal=True), ()
        case lines.FromScratch(folder=folder) if run.resume_step:
            return replace(memory, scratch=folder), ()
        case lines.Traceback() if part.startswith("env"):
            if dict(memory.env_errors).get(part, -math.inf) >= memory.moved_s:
                return memory, ()  # an error that is raised again and again must not postpone the alarm
            return replace(memory, env_errors=_put(memory.env_errors, part, now_s)), ()
        case _:
            return memory, ()


def _add_batch(
    run: KnownPrimeRlRun, memory: PrimeRlHistory, batch: lines.BatchReady, now_s: float, limits: PrimeRlLimits
) -> Result:
    """A filling batch is progress, and in a step of an hour the only sign of it."""
    before = memory.batch
    if before is not None and batch.wanted == before.wanted and batch.ready == before.ready:
        return memory, ()
    memory = replace(memory, batch=batch, moved_s=now_s)
    if now_s - memory.phase_reported_s < limits.phase_every_s:
        return memory, ()
    phase = Phase(run.attempt, "train", f"{batch.ready} of {batch.wanted} rollouts")
    return replace(memory, phase_reported_s=now_s), (phase,)


def _add_row(run: KnownPrimeRlRun, memory: PrimeRlHistory, row: lines.MetricsRow, now_s: float) -> Result:
    """Merge the rows of a step until its last row, or a row of a later step."""
    memory = replace(memory, has_rows=True)
    if row.tokens_seen is not None:
        memory = replace(memory, tokens_seen=max(memory.tokens_seen, row.tokens_seen))
    if row.save_s:
        memory = replace(memory, save_s=(*memory.save_s, (row.step, row.save_s))[-4:])
    if not (row.is_last or row.loss is not None or row.tokens_per_s is not None):
        return memory, ()
    pending, events = memory.pending, _NOTHING
    if pending is not None and row.step != pending.step:
        memory, events = _add_step(run, replace(memory, pending=None), pending, now_s)
        pending = None
    merged = row if pending is None else _merge(pending, row)
    if not merged.is_last:
        return replace(memory, pending=merged), events
    memory, more = _add_step(run, replace(memory, pending=None), merged, now_s)
    return memory, (*events, *more)


def _merge(one: lines.MetricsRow, other: lines.MetricsRow) -> lines.MetricsRow:
    return lines.MetricsRow(
        one.step,
        other.loss if other.loss is not None else one.loss,
        other.tokens_per_s if other.tokens_per_s is not None else one.tokens_per_s,
        is_last=one.is_last or other.is_last,
    )


def _add_step(run: KnownPrimeRlRun, memory: PrimeRlHistory, row: lines.MetricsRow, now_s: float) -> Result:
    """A step is reported once, although a resume writes some steps again."""
    if row.step <= memory.step:
        return memory, ()
    loss = math.nan if row.loss is None else row.loss
    rate = memory.tokens_per_s if row.tokens_per_s is None else row.tokens_per_s
    memory = replace(memory, step=row.step, loss=loss, tokens_per_s=rate, moved_s=now_s, is_saving=False)
    if run.resume_step and row.step < run.resume_step - 1:
        memory = replace(memory, scratch=memory.scratch or f"step {row.step} came first")
    return memory, (Progress(run.attempt, row.step, loss, rate, memory.tokens_seen),)


# --- checkpoints -----------------------------------------------------------------------------------


def _add_checkpoints(
    run: KnownPrimeRlRun, memory: PrimeRlHistory, found: Sequence[SavedCheckpoint], now_s: float
) -> Result:
    """Events for new complete, new incomplete and deleted checkpoints. A save of prime-rl stops the training."""
    saved, seen = compare(memory.saved, found, now_s, run.attempt, dict(memory.save_s))
    events: list[Event] = list(seen)
    memory = replace(memory, saved=saved)
    if memory.is_saving and any(isinstance(event, CheckpointSaved) for event in events):
        memory = replace(memory, is_saving=False)
        events.append(Phase(run.attempt, "train"))  # else a hang that follows would get the time limit of a save
    return memory, tuple(events)


# --- the end ---------------------------------------------------------------------------------------


def _judge_end(run: KnownPrimeRlRun, memory: PrimeRlHistory, sample: PrimeRlSample, limits: PrimeRlLimits) -> Result:
    """The run has finished when the launcher or every part that ends by itself has, or when only silence follows."""
    if memory.finished or memory.failed is not None:
        return memory, ()
    parts = {"trainer", "orchestrator"} if run.has_orchestrator else {"trainer"}
    all_ended = "launcher" in memory.ended or parts <= set(memory.ended)
    quiet_s = sample.now_s - max(sample.written_s, memory.ended_s or 0.0)
    wedged = memory.ended_s is not None and quiet_s >= limits.tail_quiet_s
    if not (all_ended or wedged):
        return memory, ()
    return finish(run, memory)


def finish(run: KnownPrimeRlRun, memory: PrimeRlHistory) -> Result:
    """The trainer's last event. It ends only at max_steps."""
    step = run.max_steps if run.max_steps < ENDLESS_STEPS else max(memory.step, memory.saved.newest_complete, 0)
    return replace(memory, finished=True), (TrainerFinished(run.attempt, step, memory.loss, memory.saved.newest),)


# --- servers ---------------------------------------------------------------------------------------


def _add_servers(
    memory: PrimeRlHistory, running: Sequence[str], expected: Sequence[str], now_s: float
) -> PrimeRlHistory:
    seen = tuple(sorted({*memory.servers, *running, *expected}))
    gone = {server: dict(memory.gone).get(server, now_s) for server in seen if server not in running}
    return replace(memory, servers=seen, gone=tuple(gone.items()))


def _add(words: tuple[str, ...], word: str) -> tuple[str, ...]:
    return words if word in words else (*words, word)


def _put(pairs: tuple[tuple[str, float], ...], key: str, value: float) -> tuple[tuple[str, float], ...]:
    return tuple((dict(pairs) | {key: value}).items())
