"""Judges a vLLM server by the tokens it counts while requests run, never by /health alone. Pure but for EngineWatch.

A server whose engine hangs answers /health with 200 for ever (vllm#17972, #1492, #47958): its own process is well.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prime_train.core.process_id import Identity
from prime_train.programs.vllm.engine_metrics import Engine
from prime_train.supervise.state import State
from prime_train.supervise.watches.sampler import Sampler
from prime_train.supervise.watches.watch import Alarm, Answer

PROGRAM = Path(__file__).with_name("engine_program.py")


@dataclass(frozen=True, slots=True)
class Limits:
    """When something is wrong. Times in seconds."""

    still_s: float = 60.0  # without a token while requests run; more where longer pauses were overcome
    still_factor: float = 3.0  # times the longest pause after which tokens came again
    still_max_s: float = 600.0
    refused_s: float = 15.0  # /health says that the engine is dead; the server then ends itself in a few seconds
    unanswered_s: float = 60.0  # /health or /metrics says nothing
    window_s: float = 300.0  # over which a queue and preemptions are looked at
    queue_factor: float = 10.0  # requests that wait, to those that run
    queue_least: int = 100
    preemptions: int = 50  # in the window
    behind_steps: int = 8  # that the trainer is ahead of the weights that are served


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a server, as engine_program.py writes it. `at_s` by time.monotonic()."""

    at_s: float
    health: int  # HTTP status; 0 = no answer
    fault: str = ""
    metrics: int = 0
    engines: tuple[Engine, ...] = ()
    asked_s: float | None = None  # so long a request of our own has been open
    paused: bool = False
    weight_version: int | None = None


def sample(document: Mapping[str, Any]) -> Sample:
    """What a line of the program says. Raises KeyError, TypeError or ValueError for what is no sample."""
    version = document["weight_version"]
    return Sample(
        at_s=float(document["at_s"]),
        health=int(document["health"]),
        fault=str(document["fault"]),
        metrics=int(document["metrics"]),
        engines=tuple(Engine(**engine) for engine in document["engines"]),
        asked_s=None if document["asked_s"] is None else float(document["asked_s"]),
        paused=bool(document["paused"]),
        weight_version=int(version) if str(version).isdecimal() else None,
    )


# --- what is remembered ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    """One engine over time. `moved_s`: when it last did something, or nothing was asked of it."""

    work: tuple[float, float]  # tokens, and use of the KV cache
    moved_s: float
    longest_s: float = 0.0  # pause that it overcame


@dataclass(frozen=True, slots=True)
class Memory:
    """What is known of one start of a server. It is judged once it has been well: until then it starts."""

    last: Sample | None = None
    has_served: bool = False
    well_s: float = 0.0  # when /health last answered 200
    heard_s: float = 0.0  # when /health last answered at all
    counted_s: float = 0.0  # when /metrics last did
    engines: Mapping[str, Progress] = field(default_factory=dict)
    window: tuple[Sample, ...] = ()  # those of the last Limits.window_s, oldest first


def learn(memory: Memory, seen: Sample, limits: Limits) -> Memory:
    """The memory after one more look."""
    at_s = seen.at_s
    counted = seen.metrics == 200 and bool(seen.engines)
    return replace(
        memory,
        last=seen,
        has_served=memory.has_served or seen.health == 200,
        well_s=at_s if seen.health == 200 else memory.well_s,
        heard_s=at_s if seen.health else memory.heard_s,
        counted_s=at_s if counted or not memory.has_served else memory.counted_s,
        engines={e.name: _progress(memory.engines.get(e.name), e, seen) for e in seen.engines}
        if counted
        else memory.engines,
        window=tuple(old for old in (*memory.window, seen) if at_s - old.at_s <= limits.window_s)
        if counted
        else memory.window,
    )


def _progress(before: Progress | None, engine: Engine, seen: Sample) -> Progress:
    at_s, work = seen.at_s, (engine.tokens, engine.cache_used)
    if before is None:
        return Progress(work, at_s)
    if work != before.work:
        return Progress(work, at_s, max(before.longest_s, at_s - before.moved_s))
    asked = seen.asked_s is not None and len(seen.engines) == 1  # of several, which one it went to is not known
    busy = (engine.running > 0 or asked) and not engine.asleep and not seen.paused
    return before if busy else replace(before, moved_s=at_s)


# --- what is wrong ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subject:
    """Which server is judged, and what follows where it is dead."""

    role: str
    url: str
    answer: Answer = "restart"


def judge(memory: Memory, subject: Subject, limits: Limits, trained_step: int | None = None) -> tuple[Alarm, ...]:
    """Everything that is wrong as of the last look. `trained_step`: of the weights that the trainer has."""
    if memory.last is None or not memory.has_served:
        return ()
    if memory.last.health != 200:
        return tuple(_unwell(memory, memory.last, subject, limits))
    return (
        *_still(memory, memory.last, subject, limits),
        *_uncounted(memory, memory.last, subject, limits),
        *_slow(memory, memory.last, subject, limits),
        *_behind(memory.last, subject, limits, trained_step),
    )


def _alarm(subject: Subject, name: str, cause_class: str, told: tuple[str, str, str], answer: Answer) -> Alarm:
    what, why, fix = told
    return Alarm("engine", name, subject.role, answer, cause_class, what, why, fix, subject.url)


def _unwell(memory: Memory, last: Sample, subject: Subject, limits: Limits) -> Iterator[Alarm]:
    since_s = last.at_s - (memory.well_s if last.health else memory.heard_s)
    if last.health and since_s > limits.refused_s:
        what = f"/health of {subject.role} has answered {last.health} for {since_s:.0f} s"
        why = "its engine core is dead, and the server in front of it did not end"
        fix = f"the {subject.role} log has the engine's last words; {_restarted(subject)}"
        yield _alarm(subject, "engine_dead", "unknown", (what, why, fix), subject.answer)
    if not last.health and since_s > limits.unanswered_s:
        what = f"{subject.role} has answered nothing for {since_s:.0f} s ({last.fault})"
        why = "its API server hangs or is gone, and every request with it"
        fix = f"py-spy dump --pid of its API server shows where it waits; {_restarted(subject)}"
        yield _alarm(subject, "engine_unanswered", "hang", (what, why, fix), subject.answer)


def _still(memory: Memory, last: Sample, subject: Subject, limits: Limits) -> Iterator[Alarm]:
    for engine in last.engines:
        progress = memory.engines[engine.name]
        limit_s = min(max(limits.still_s, limits.still_factor * progress.longest_s), limits.still_max_s)
        still_s = last.at_s - progress.moved_s
        if still_s <= limit_s:
            continue
        which = f"{subject.role}, engine {engine.name}" if len(last.engines) > 1 else subject.role
        asked = f"{engine.running} request{'s' if engine.running != 1 else ''} running, {engine.waiting} waiting"
        waits = asked if engine.running else "a request of one token is open"
        what = f"{which}: no token for {still_s:.0f} s, {waits}; /health still answers 200"
        why = "the engine core or one of its workers hangs; the API server in front of it does not notice"
        fix = f"py-spy dump --pid of VLLM::EngineCore and its workers shows where; {_restarted(subject)}"
        alarm = _alarm(subject, "engine_still", "hang", (what, why, fix), subject.answer)
        yield replace(alarm, subject=which)


def _restarted(subject: Subject) -> str:
    return "it is started anew" if subject.answer == "restart" else 'watch.engine = "restart" starts it anew'


def _uncounted(memory: Memory, last: Sample, subject: Subject, limits: Limits) -> Iterator[Alarm]:
    since_s = last.at_s - memory.counted_s
    if since_s > limits.unanswered_s:
        said = f"{last.metrics}" if last.metrics != 200 else "none of vLLM's counters"
        what = f"/metrics of {subject.role} has answered {said if last.metrics else 'nothing'} for {since_s:.0f} s"
        why = "without its counters a dead engine cannot be told from an idle one"
        fix = "take --disable-log-stats out of the server's arguments, and its path out of any proxy's way"
        yield _alarm(subject, "engine_uncounted", "unknown", (what, why, fix), "alert")


def _slow(memory: Memory, last: Sample, subject: Subject, limits: Limits) -> Iterator[Alarm]:
    """What grows over the whole window. Its first sample is as old as that, or it is too early to say."""
    first = memory.window[0] if memory.window else last
    if last.at_s - first.at_s < 0.9 * limits.window_s:
        return
    minutes = (last.at_s - first.at_s) / 60
    waiting, running = sum(e.waiting for e in last.engines), sum(e.running for e in last.engines)
    grew = waiting - sum(e.waiting for e in first.engines)
    if waiting >= max(limits.queue_least, limits.queue_factor * running) and grew > 0:
        what = f"{waiting:,} requests wait for {running:,} that run, {grew:,} more than {minutes:.0f} min ago"
        why = "requests come faster than they are answered: each waits longer, up to the client's own limit"
        fix = "send fewer at once, raise --max-num-seqs where the KV cache has room, or serve on more GPUs"
        yield _alarm(subject, "engine_queue", "unknown", (what, why, fix), "note")
    preempted = sum(e.preemptions for e in last.engines) - sum(e.preemptions for e in first.engines)
    if preempted >= limits.preemptions:
        what = f"{preempted:,} requests were preempted in {minutes:.0f} min"
        why = "the KV cache is full: what was computed for them is thrown away and computed again"
        fix = "raise inference.gpu_memory_fraction, lower inference.ctx_tokens or --max-num-seqs"
        yield _alarm(subject, "engine_preempts", "unknown", (what, why, fix), "note")


def _behind(last: Sample, subject: Subject, limits: Limits, trained_step: int | None) -> Iterator[Alarm]:
    if trained_step is None or last.weight_version is None:
        return
    behind = trained_step - last.weight_version
    if behind > limits.behind_steps:
        what = f"{subject.role} serves the weights of step {last.weight_version:,}, {behind:,} behind the trainer"
        why = "rollouts of old weights teach the model less, and those of too old ones are thrown away"
        fix = "look for failed weight updates in its log; POST /update_weight_version says what is loaded"
        yield _alarm(subject, "engine_behind", "unknown", (what, why, fix), "alert")


# --- the shell -------------------------------------------------------------------------------------


class EngineWatch:
    """Looks at the server of one role. It is judged from the time it was ready, and not while the run is ending.

    `model`, where given, is what requests of one token name: see engine_program.py. `log` takes the program's errors.
    """

    name = "engine"

    def __init__(
        self,
        url: str,
        role: str,
        *,
        answer: Answer,
        interval_s: float = 5.0,
        model: str = "",
        log: Path,
        limits: Limits = Limits(),
    ) -> None:
        self._subject = Subject(role, url, answer)
        self._limits = limits
        self._sampler = Sampler(PROGRAM, [url, f"{interval_s:g}", model], log)
        self._memory = Memory()
        self._attempt = 0
        self._since_s = 0.0

    def begin(self) -> None:
        self._sampler.begin()

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        del now_s  # samples are stamped by the clock that no one sets
        seen = [sample(document) for document in self._sampler.take()]
        live = state.live
        if live is None or self._subject.role not in live.ready:
            self._memory = Memory()
            return ()
        if live.number != self._attempt:
            self._attempt, self._since_s = live.number, time.monotonic()
            at_s = self._since_s  # it has just answered: one that dies before the first look is not still starting
            self._memory = Memory(has_served=True, well_s=at_s, heard_s=at_s, counted_s=at_s)
        for one in seen:
            if one.at_s >= self._since_s:
                self._memory = learn(self._memory, one, self._limits)
        if live.sent or live.trainer_exit is not None or state.stop_requested_s is not None:
            return ()
        blind = self._blind()
        return (blind,) if blind is not None else judge(self._memory, self._subject, self._limits, state.step)

    def _blind(self) -> Alarm | None:
        code = self._sampler.ended
        if code is None:
            return None
        told = (
            f"the program that looks at {self._subject.role} has ended with code {code}",
            "nobody would see its engine hang",
            "its log has the error; the run goes on, and the next start of prime-train run watches again",
        )
        return _alarm(self._subject, "engine_unwatched", "unknown", told, "alert")

    def processes(self) -> tuple[Identity, ...]:
        return self._sampler.processes()

    def end(self) -> None:
        self._sampler.end()
