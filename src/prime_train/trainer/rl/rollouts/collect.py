"""Collects one rollout: poses a task, lets the engine and the environment take turns, and scores the chat.

The tokens of the model are kept as the engine generated them. Text is only made from them for the environment. An
environment is called on threads, each call with a time limit. A call that hangs is left behind.
"""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from prime_train.core.spans import Span, Spans
from prime_train.environments.environment import Environment, EnvironmentFailed, Message, Reply, Split, Task, Tool
from prime_train.spec.rl import TaskSource
from prime_train.trainer import seed
from prime_train.trainer.rl.engines.engine import Engine, Generation, GenerationRequest, PromptTooLongError
from prime_train.trainer.rl.rollouts.rollout import Failed, Rollout

Result = TypeVar("Result")

MAX_HANGING = 64  # calls that are left behind at the same time; each holds a thread
_MAX_REASON = 300  # characters
_MAX_TRACE = 8_000  # characters, from the end: the error is there


class ChatTokens(Protocol):
    """What is needed of a chat tokenizer."""

    @property
    def stop_tokens(self) -> frozenset[int]: ...

    def prompt_tokens(self, messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[int, ...]: ...

    def following_tokens(
        self, previous: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool], *, stop: int | None
    ) -> tuple[int, ...]: ...

    def parse_answer(self, tokens: Sequence[int], tools: Sequence[Tool]) -> Message: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One rollout to collect."""

    environment: Environment
    source: TaskSource  # the limits of the environment
    split: Split = "train"
    task: int  # the number of the task
    seed: int  # of the sampling: another one for each rollout of a task
    answer_tokens: int
    temperature: float
    limit_s: float
    lane: str = ""  # for spans: "rollout-17"


class LimitedCalls:
    """Threads that wait for the next call. May be used from several threads at once."""

    def __init__(self, max_hanging: int = MAX_HANGING) -> None:
        self._max_hanging = max_hanging
        self._lock = threading.Lock()
        self._idle: list[_Caller] = []
        self._hanging: list[_Caller] = []

    def call(self, function: Callable[[], Result], limit_s: float, what: str) -> Result:
        """What `function` returns or raises; EnvironmentFailed for `what` after `limit_s`, or if too many hang."""
        caller = self._take(what)
        answer: Future[Any] = Future()
        caller.calls.put((function, answer))
        wait([answer], limit_s)
        with self._lock:  # so that the thread of an answer that comes right now is not left behind
            if answer.done():
                self._idle.append(caller)
            else:
                self._hanging.append(caller)
                caller.calls.put(None)  # the thread ends if the call ever returns
                raise EnvironmentFailed(f"{what} took longer than {limit_s:.4g} s")
        result: Result = answer.result()
        return result

    def close(self) -> None:
        """End the idle threads. Those that hang are daemons, so the process can end without them."""
        with self._lock:
            for caller in self._idle:
                caller.calls.put(None)
            for caller in self._idle:
                caller.thread.join()
            self._idle.clear()

    def _take(self, what: str) -> _Caller:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            self._hanging = [caller for caller in self._hanging if caller.thread.is_alive()]
            if len(self._hanging) >= self._max_hanging:
                raise EnvironmentFailed(f"{what} was not called: {len(self._hanging)} earlier calls still hang")
        return _Caller()


class _Caller:
    """A thread, and the calls that it makes one after the other; None ends it."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="environment-call", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (call := self.calls.get()) is not None:
            function, answer = call
            try:
                answer.set_result(function())
            except BaseException as error:  # handed to the caller, also a SystemExit of an environment
                answer.set_exception(error)


@dataclass(frozen=True, slots=True)
class Means:
    """What collects rollouts, shared by all of them."""

    engine: Engine
    chat: ChatTokens
    calls: LimitedCalls
    spans: Spans


@dataclass(slots=True)
class _Chat:
    """A chat so far: its messages, and the tokens that the engine saw and wrote."""

    messages: list[Message]
    tokens: list[int] = field(default_factory=list)  # (T,)
    sampled: list[bool] = field(default_factory=list)  # (T,)
    logprobs: list[float] = field(default_factory=list)  # (T,)
    versions: list[int] = field(default_factory=list)  # of each turn
    truncated: bool = False

    def add_answer(self, prompt: Sequence[int], generation: Generation, message: Message) -> None:
        """`prompt`: the tokens before the answer that no earlier turn has."""
        self.tokens += [*prompt, *generation.tokens]
        self.sampled += [False] * len(prompt) + [True] * len(generation.tokens)
        self.logprobs += [0.0] * len(prompt) + list(generation.logprobs)
        self.versions.append(generation.version)
        self.messages.append(message)


def collect(assignment: Assignment, means: Means) -> Rollout | Failed:
    """The rollout; Failed if its environment fails, hangs or gives no number. Raises EngineError."""
    deadline_s = time.monotonic() + assignment.limit_s
    environment, number = assignment.environment, assignment.task
    try:
        task = _call(assignment, means, deadline_s, "task", partial(environment.task, assignment.split, number))
        chat = _talk(assignment, means, task, deadline_s)
        messages = tuple(chat.messages)
        reward = 0.0  # without an answer there is nothing to score
        if chat.versions:
            score = partial(environment.score, task, messages)
            reward = _check_reward(_call(assignment, means, deadline_s, "score", score))
    except EnvironmentFailed as error:
        reason = " ".join(str(error).split())[:_MAX_REASON] or type(error).__name__
        return Failed(environment.name, number, reason, error.trace[-_MAX_TRACE:])
    return Rollout(
        environment=environment.name,
        task=number,
        tokens=tuple(chat.tokens),
        sampled=tuple(chat.sampled),
        logprobs=tuple(chat.logprobs),
        reward=reward,
        version=min(chat.versions, default=means.engine.version),
        truncated=chat.truncated,
        turns=len(chat.versions),
        temperature=assignment.temperature,
    )


def _talk(assignment: Assignment, means: Means, task: Task, deadline_s: float) -> _Chat:
    """Engine and environment take turns until the environment is done or a limit is reached."""
    environment, engine = assignment.environment, means.engine
    chat = _Chat(list(task.messages))
    prompt = means.chat.prompt_tokens(task.messages, task.tools)  # tokens that the engine has not seen yet
    for turn in range(assignment.source.max_turns):
        request = GenerationRequest(
            prompt=(*chat.tokens, *prompt),
            max_new_tokens=assignment.answer_tokens,
            temperature=assignment.temperature,
            stop_tokens=means.chat.stop_tokens,
            seed=seed.mix(assignment.seed, "turn", turn),
            lane=assignment.lane,
        )
        try:
            generation = engine.generate(request)
        except PromptTooLongError:
            chat.truncated = True
            return chat
        chat.add_answer(prompt, generation, means.chat.parse_answer(generation.tokens, task.tools))
        if generation.finish != "stop":
            chat.truncated = True
            return chat
        messages = tuple(chat.messages)
        reply = _call(assignment, means, deadline_s, "answer", partial(environment.respond, task, messages))
        if reply.done:
            return chat
        if not reply.messages:
            raise EnvironmentFailed(f"{environment.name} neither answered a turn nor ended the task")
        prompt = means.chat.following_tokens(messages, reply.messages, task.tools, stop=generation.tokens[-1])
        chat.messages += reply.messages
    chat.truncated = True
    return chat


def _call(assignment: Assignment, means: Means, deadline_s: float, what: str, function: Callable[[], Result]) -> Result:
    """Call the environment within its limit and the rollout's, and record the span. Raises EnvironmentFailed."""
    start_s = time.monotonic()
    name, rest_s = assignment.environment.name, deadline_s - start_s
    if rest_s <= 0:
        raise EnvironmentFailed(f"the rollout took longer than {assignment.limit_s:.4g} s")
    result = None
    try:
        result = means.calls.call(function, min(assignment.source.limit_s, rest_s), f"the {what} of {name}")
    except EnvironmentFailed:
        raise
    except Exception as error:  # an environment is the user's code and may raise anything
        text = "".join(traceback.format_exception(error))
        raise EnvironmentFailed(f"{type(error).__name__} in the {what} of {name}: {error}", text) from error
    finally:
        tool_s = result.tool_s if isinstance(result, Reply) else 0.0
        end_s = time.monotonic()
        if tool_s > 0:
            means.spans.add(Span("tool", assignment.lane, start_s, min(start_s + tool_s, end_s), count=1))
        means.spans.add(Span("environment", assignment.lane, min(start_s + tool_s, end_s), end_s, count=1))
    return result


def _check_reward(reward: object) -> float:
    """The reward as a float. Raises EnvironmentFailed for NaN, infinity and what is no number."""
    if not isinstance(reward, Real) or not math.isfinite(reward):
        raise EnvironmentFailed(f"the reward {reward!r:.80} is not a finite number")
    return float(reward)
