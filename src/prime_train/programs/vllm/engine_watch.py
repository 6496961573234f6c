"""Judges a vLLM server by the tokens it counts while requests run, never by /health alone. Pure except EngineWatch.

A server whose engine hangs answers /health with 200 forever, because its own process works: vllm#17972, #1492, #47958.
One whose engine dies during a weight update closes its port, and waits for the answer to that request (vLLM 0.32).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prime_train.core.outside import to_count
from prime_train.programs.vllm.engine_program import EngineCounters
from prime_train.supervise.core.state import State
from prime_train.supervise.watches.sample_lines import load
from prime_train.supervise.watches.sampler import SampledWatch, Sampler
from prime_train.supervise.watches.watch import Alarm, Answer

PROGRAM = Path(__file__).with_name("engine_program.py")
_KEPT_STEPS = 256  # more looks than there are between two samples
DEVELOPMENT = "VLLM_SERVER_DEV_MODE"  # adds the routes for weights and pauses, and those with a weight version


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """When an alarm is raised. Times in seconds."""

    still_s: float = 60.0  # without a token while requests run; more after longer pauses that ended
    still_factor: float = 3.0  # times the longest pause after which tokens came again
    still_max_s: float = 600.0
    dead_s: float = 15.0  # the engine is dead; the server then usually ends itself in a few seconds
    unanswered_s: float = 60.0  # /health or /metrics does not answer
    window_s: float = 300.0  # for a queue and preemptions
    queue_factor: float = 10.0  # waiting requests to running ones
    queue_least: int = 100
    preemptions: int = 50  # in the window
    behind_steps: int = 8  # that the trainer is ahead of the served weights


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One look at a server, as engine_program.py writes it. `at_s` by time.monotonic()."""

    at_s: float
    health: int  # HTTP status; 0 = no answer
    fault: str = ""
    refused: bool = False  # its port is closed
    metrics: int = 0
    engines: tuple[EngineCounters, ...] = ()
    asked_s: float | None = None  # how long an own request has been open
    paused: bool = False
    weight_version: int | None = None


def parse_sample(raw: dict[str, Any]) -> EngineSample:
    """One line of engine_program.py. Raises ValueError for any other line."""
    return load(EngineSample, raw | {"weight_version": to_count(raw.get("weight_version"))})


# --- what is remembered ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EngineProgress:
    """One engine over time. `moved_s`: when it last made progress, or had no request."""

    work: tuple[float, float]  # tokens, and use of the KV cache
    moved_s: float
    longest_s: float = 0.0  # the longest pause that ended


@dataclass(frozen=True, slots=True)
class EngineHistory:
    """State of one start of a server. It is judged after its first good /health: until then it starts."""

    last: EngineSample | None = None
    has_served: bool = False
    well_s: float = 0.0  # when /health last answered 200
    heard_s: float = 0.0  # when /health last answered with any status
    counted_s: float = 0.0  # when /metrics last did
    engines: Mapping[str, EngineProgress] = field(default_factory=dict)
    window: tuple[EngineSample, ...] = ()  # samples of the last Limits.window_s, oldest first


def learn(memory: EngineHistory, seen: EngineSample, limits: EngineLimits) -> EngineHistory:
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
        engines={e.name: _update(memory.engines.get(e.name), e, seen) for e in seen.engines}
        if counted
        else memory.engines,
        window=tuple(old for old in (*memory.window, seen) if at_s - old.at_s <= limits.window_s)
        if counted
        else memory.window,
    )


def _update(before: EngineProgress | None, engine: EngineCounters, seen: EngineSample) -> EngineProgress:
    at_s, work = seen.at_s, (engine.tokens, engine.cache_used)
    if before is None:
        return EngineProgress(work, at_s)
    if work != before.work:
        return EngineProgress(work, at_s, max(before.longest_s, at_s - before.moved_s))
    asked = seen.asked_s is not None and len(seen.engines) == 1  # with several engines, its engine is not known
    busy = (engine.running > 0 or asked) and not engine.asleep and not seen.paused
    return before if busy else replace(before, moved_s=at_s)


# --- what is wrong ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subject:
    """The judged server, and the answer if it is dead."""

    role: str
    url: str
    answer: Answer = "restart"


def judge(
    memory: EngineHistory, subject: Subject, limits: EngineLimits, trained_step: int | None = None
) -> tuple[Alarm, ...]:
    """Everything that is wrong as of the last look. `trained_step`: the step of the trainer's weights."""
    if memory.last is None or not memory.has_served:
        return ()
    if memory.last.health != 200:
        return tuple(_judge_health(memory, memory.last, subject, limits))
    return (
        *_judge_tokens(memory, memory.last, subject, limits),
        *_judge_metrics(memory, memory.last, subject, limits),
        *_judge_load(memory, memory.last, subject, limits),
        *_judge_weights(memory.last, subject, limits, trained_step),
    )


def _alarm(subject: Subject, name: str, cause_class: str, texts: tuple[str, str, str], answer: Answer) -> Alarm:
    what, why, fix = texts
    return Alarm("engine", name, subject.role, answer, cause_class, what, why, fix, subject.url)


def _judge_health(memory: EngineHistory, last: EngineSample, subject: Subject, limits: EngineLimits) -> Iterator[Alarm]:
    """After an error status, or where its port is closed, a server does not recover. Where it only hangs, it may."""
    is_dead = memory.heard_s > memory.well_s or last.refused
    since_s = last.at_s - (memory.well_s if is_dead else memory.heard_s)
    restart = _describe_restart(subject)
    if is_dead and since_s > limits.dead_s:
        what = f"/health of {subject.role} has answered {last.health} for {since_s:.0f} s"
        if not last.health:
            what = f"{subject.role} was last well {since_s:.0f} s ago, and does not answer any more ({last.fault})"
        why = "its engine core is dead, and its API server has not ended by itself"
        fix = f"the {subject.role} log has the engine's last lines; {restart}"
        yield _alarm(subject, "engine_dead", "unknown", (what, why, fix), subject.answer)
    if not is_dead and since_s > limits.unanswered_s:
        what = f"{subject.role} has not answered for {since_s:.0f} s ({last.fault})"
        why = "its API server hangs or is gone, so every request fails"
        fix = f"py-spy dump --pid of its API server shows where it waits; {restart}"
        yield _alarm(subject, "engine_unanswered", "hang", (what, why, fix), subject.answer)


def _judge_tokens(memory: EngineHistory, last: EngineSample, subject: Subject, limits: EngineLimits) -> Iterator[Alarm]:
    for engine in last.engines:
        progress = memory.engines[engine.name]
        limit_s = min(max(limits.still_s, limits.still_factor * progress.longest_s), limits.still_max_s)
        still_s = last.at_s - progress.moved_s
        if still_s <= limit_s:
            continue
        which = f"{subject.role}, engine {engine.name}" if len(last.engines) > 1 else subject.role
        requests = f"{engine.running} request{'s' if engine.running != 1 else ''} running, {engine.waiting} waiting"
        waits = requests if engine.running else "a request of one token is open"
        what = f"{which}: no token for {still_s:.0f} s, {waits}; /health still answers 200"
        why = "the engine core or one of its workers hangs; its API server does not notice"
        fix = f"py-spy dump --pid of VLLM::EngineCore and its workers shows where; {_describe_restart(subject)}"
        alarm = _alarm(subject, "engine_still", "hang", (what, why, fix), subject.answer)
        yield replace(alarm, subject=which)


def _describe_restart(subject: Subject) -> str:
    return "it restarts now" if subject.answer == "restart" else 'watch.engine = "restart" would restart it'


def _judge_metrics(
    memory: EngineHistory, last: EngineSample, subject: Subject, limits: EngineLimits
) -> Iterator[Alarm]:
    since_s = last.at_s - memory.counted_s
    if since_s > limits.unanswered_s:
        answer = f"{last.metrics}" if last.metrics != 200 else "none of vLLM's counters"
        what = f"/metrics of {subject.role} has answered {answer if last.metrics else 'nothing'} for {since_s:.0f} s"
        why = "without its counters a dead engine looks like an idle one"
        fix = "remove --disable-log-stats from the server's arguments, and let any proxy pass /metrics"
        yield _alarm(subject, "engine_uncounted", "unknown", (what, why, fix), "alert")


def _judge_load(memory: EngineHistory, last: EngineSample, subject: Subject, limits: EngineLimits) -> Iterator[Alarm]:
    """Values that grow over the whole window. While the samples are younger than the window, nothing is judged."""
    first = memory.window[0] if memory.window else last
    if last.at_s - first.at_s < 0.9 * limits.window_s:
        return
    minutes = (last.at_s - first.at_s) / 60
    waiting, running = sum(e.waiting for e in last.engines), sum(e.running for e in last.engines)
    grew = waiting - sum(e.waiting for e in first.engines)
    if waiting >= max(limits.queue_least, limits.queue_factor * running) and grew > 0:
        what = f"{waiting:,} requests wait and {running:,} run; {grew:,} more wait than {minutes:.0f} min ago"
        why = "requests arrive faster than they are answered: each waits longer, up to the client's own limit"
        fix = "send fewer at once, raise --max-num-seqs if the KV cache has room, or serve on more GPUs"
        yield _alarm(subject, "engine_queue", "unknown", (what, why, fix), "note")
    preempted = sum(e.preemptions for e in last.engines) - sum(e.preemptions for e in first.engines)
    if preempted >= limits.preemptions:
        what = f"{preempted:,} requests were preempted in {minutes:.0f} min"
        why = "the KV cache is full: their results are discarded and computed again"
        fix = "raise inference.gpu_memory_fraction, lower inference.ctx_tokens or --max-num-seqs"
        yield _alarm(subject, "engine_preempts", "unknown", (what, why, fix), "note")


def _judge_weights(
    last: EngineSample, subject: Subject, limits: EngineLimits, trained_step: int | None
) -> Iterator[Alarm]:
    if trained_step is None or last.weight_version is None:
        return
    behind = trained_step - last.weight_version
    if behind > limits.behind_steps:
        what = f"{subject.role} serves the weights of step {last.weight_version:,}, {behind:,} behind the trainer"
        why = "rollouts of old weights improve the model less, and those of very old weights are discarded"
        fix = "look for failed weight updates in its log; POST /update_weight_version returns the loaded version"
        yield _alarm(subject, "engine_behind", "unknown", (what, why, fix), "alert")


# --- the shell -------------------------------------------------------------------------------------


class EngineWatch(SampledWatch):
    """Watches the server of one role. It is judged from the time it is ready, and not while the run is ending.

    `model` is the model of own requests, "" for none: see engine_program.py. `log` receives the program's errors.
    `development`: the server is in vLLM's development mode. `served_from_step`: the first step whose weights it gets.
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
        limits: EngineLimits = EngineLimits(),
        development: bool = False,
        served_from_step: int = 0,
    ) -> None:
        self._served_from_step = served_from_step
        self._subject = Subject(role, url, answer)
        self._limits = limits
        variables = {DEVELOPMENT: "1"} if development else {}
        self._sampler = Sampler(PROGRAM, [url, f"{interval_s:g}", model], log, variables)
        self._memory = EngineHistory()
        self._attempt = 0
        self._since_s = 0.0
        self._trained: deque[tuple[float, int]] = deque(maxlen=_KEPT_STEPS)  # when the trainer was seen at which step

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        self._sampler.keep()
        seen = [parse_sample(raw) for raw in self._sampler.take()]
        live = state.live
        if live is None or self._subject.role not in live.ready:
            self._memory = EngineHistory()
            return ()
        if live.number != self._attempt:
            self._attempt, self._since_s = live.number, time.monotonic()
            at_s = self._since_s  # it has just answered: if it dies before the first look, it is dead, not starting
            self._memory = EngineHistory(has_served=True, well_s=at_s, heard_s=at_s, counted_s=at_s)
            self._trained.clear()
        for one in seen:
            if one.at_s >= self._since_s:
                self._memory = learn(self._memory, one, self._limits)
        if live.sent or live.trainer_exit is not None or state.stop_requested_s is not None:
            return ()
        ended = self._judge_sampler()
        if ended is not None:
            return (ended,)
        if state.step is not None and state.step >= self._served_from_step:
            self._trained.append((time.monotonic(), state.step))
        return judge(self._memory, self._subject, self._limits, self._find_trained_step())

    def _find_trained_step(self) -> int | None:
        """The step of the trainer when the last sample was taken, since which it may have made many."""
        last = self._memory.last
        if last is None:
            return None
        return max((step for at_s, step in self._trained if at_s <= last.at_s), default=None)

    def _judge_sampler(self) -> Alarm | None:
        code = self._sampler.failed
        if code is None:
            return None
        what = f"the program that samples {self._subject.role} has ended with exit code {code}"
        why = "a hang of its engine would not be noticed"
        fix = "its log has the error; the run continues, and the program is started again"
        return _alarm(self._subject, "engine_unwatched", "unknown", (what, why, fix), "alert")
