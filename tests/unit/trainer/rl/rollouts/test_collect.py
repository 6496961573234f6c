"""Collection of one rollout: tokens as generated, limits of every kind, and failures of the environment."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest

from prime_train.core.spans import Spans, read_spans
from prime_train.environments.environment import Environment, EnvironmentFailed, Reply
from prime_train.environments.load import open_environment
from prime_train.spec.rl import TaskSource
from prime_train.trainer.rl.engines.engine import EngineError
from prime_train.trainer.rl.rollouts.collect import Assignment, LimitedCalls, Means, collect
from prime_train.trainer.rl.rollouts.rollout import Failed, Rollout
from tests.unit.trainer.rl.chats import CALL, END, TURN, CharacterChat, FunctionEngine, Scripted

CHAT = CharacterChat()


def means(engine: FunctionEngine, calls: LimitedCalls | None = None, spans: str = "") -> Means:
    return Means(engine, CHAT, calls or LimitedCalls(), Spans("rollouts", spans))


def assign(environment: Environment, **changes: Any) -> Assignment:
    source = changes.pop("source", TaskSource(kind="reverse-text"))
    values = {"task": 0, "seed": 5, "answer_tokens": 64, "temperature": 1.0, "limit_s": 30.0} | changes
    return Assignment(environment=environment, source=source, **values)


def built_in(kind: str, **arguments: float) -> Environment:
    return open_environment(TaskSource(kind=kind, arguments=arguments), 7)  # type: ignore[arg-type]


def reverse(prompt: str) -> str:
    return prompt.removesuffix(END + TURN).removeprefix("Reverse: ")[::-1]


def calculate(prompt: str) -> str:
    """A call with the expression of the task, then its answer."""
    *_, last = prompt.removesuffix(END + TURN).split(END)
    expression = last.removeprefix("<calculate>Compute ")
    return CALL + json.dumps({"expression": expression}) if expression != last else last.removeprefix(TURN)


def test_a_rollout_of_one_turn() -> None:
    engine = FunctionEngine(reverse)
    rollout = collect(assign(built_in("reverse-text"), temperature=0.5), means(engine))
    assert isinstance(rollout, Rollout)
    text = CHAT.decode(rollout.tokens)
    prompt, answer = text.split(TURN)
    assert text == f"{prompt}{TURN}{prompt.removeprefix('Reverse: ').removesuffix(END)[::-1]}{END}"
    assert rollout.sampled == (False,) * (len(prompt) + 1) + (True,) * len(answer)
    assert rollout.logprobs[: len(prompt) + 1] == (0.0,) * (len(prompt) + 1)
    assert rollout.logprobs[-1] == -ord(END) / 1000
    assert (rollout.reward, rollout.truncated, rollout.turns, rollout.version) == (1.0, False, 1, 1)
    assert rollout.answer_tokens == len(answer)
    assert engine.requests[0].temperature == 0.5


def test_the_tokens_of_earlier_turns_are_the_prompt_of_the_next() -> None:
    engine = FunctionEngine(calculate)
    rollout = collect(assign(built_in("calculator")), means(engine))
    assert isinstance(rollout, Rollout)
    assert (rollout.reward, rollout.turns) == (1.0, 2)
    first, second = engine.requests
    assert second.prompt == rollout.tokens[: len(second.prompt)]
    assert second.prompt[: len(first.prompt)] == first.prompt
    assert first.seed != second.seed
    written = CHAT.decode([token for token, sampled in zip(rollout.tokens, rollout.sampled, strict=True) if sampled])
    assert written.count(END) == 2
    assert written.startswith(CALL)


def test_the_same_assignment_gives_the_same_requests() -> None:
    first, second = FunctionEngine(calculate), FunctionEngine(calculate)
    assert collect(assign(built_in("calculator")), means(first)) == collect(
        assign(built_in("calculator")), means(second)
    )
    assert first.requests == second.requests


def test_the_oldest_weights_of_the_turns_are_the_version() -> None:
    engine = FunctionEngine(calculate)

    def advance(prompt: str) -> str:
        engine.version += 1
        return calculate(prompt)

    engine._answer = advance
    rollout = collect(assign(built_in("calculator")), means(engine))
    assert isinstance(rollout, Rollout)
    assert (rollout.version, engine.version) == (2, 3)


def test_a_long_answer_is_truncated_and_scored() -> None:
    rollout = collect(assign(built_in("reverse-text"), answer_tokens=2), means(FunctionEngine(reverse)))
    assert isinstance(rollout, Rollout)
    assert (rollout.truncated, rollout.turns, rollout.answer_tokens) == (True, 1, 2)
    assert 0 < rollout.reward <= 1


def test_a_full_context_truncates() -> None:
    engine = FunctionEngine(lambda _: "x" * 50, ctx_tokens=30)
    rollout = collect(assign(built_in("reverse-text")), means(engine))
    assert isinstance(rollout, Rollout)
    assert (rollout.truncated, len(rollout.tokens)) == (True, 30)


def test_a_prompt_that_is_too_long_is_a_truncated_rollout_without_a_turn() -> None:
    rollout = collect(assign(built_in("reverse-text")), means(FunctionEngine(reverse, ctx_tokens=4)))
    assert isinstance(rollout, Rollout)
    assert (rollout.truncated, rollout.turns, rollout.tokens, rollout.reward) == (True, 0, (), 0.0)


def test_a_later_prompt_that_is_too_long_keeps_the_turns_before() -> None:
    prompt = CHAT.prompt_tokens(built_in("calculator").task("train", 0).messages, ())
    engine = FunctionEngine(lambda _: CALL + '{"expression": "1"}')
    engine.ctx_tokens = len("<calculate>") + len(prompt) + len(CALL + '{"expression": "1"}' + END) + 1
    rollout = collect(assign(built_in("calculator")), means(engine))
    assert isinstance(rollout, Rollout)
    assert (rollout.truncated, rollout.turns) == (True, 1)
    assert rollout.sampled[-1]  # the environment's answer, which no turn follows, is left out
    assert rollout.reward == pytest.approx(0.1)


def test_the_limit_of_turns_truncates() -> None:
    source = TaskSource(kind="calculator", max_turns=3)
    engine = FunctionEngine(lambda _: CALL + "{}")
    rollout = collect(assign(built_in("calculator"), source=source), means(engine))
    assert isinstance(rollout, Rollout)
    assert (rollout.truncated, rollout.turns, len(engine.requests)) == (True, 3, 3)


def collect_failed(environment: Environment, **changes: Any) -> Failed:
    outcome = collect(assign(environment, **changes), means(FunctionEngine(lambda _: "hi")))
    assert isinstance(outcome, Failed)
    return outcome


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, None, "1", [1.0], 1j])
def test_a_reward_that_is_no_finite_number_fails(reward: object) -> None:
    assert "not a finite number" in collect_failed(Scripted(reward=lambda: reward)).reason


def raise_error(error: BaseException) -> Any:
    raise error


def test_an_environment_that_raises_fails_with_its_traceback() -> None:
    failed = collect_failed(Scripted(reward=lambda: raise_error(KeyError("answer"))))
    assert failed.reason == "KeyError in the score of scripted: 'answer'"
    assert "raise_error" in failed.trace


def test_the_trace_of_an_environment_of_another_process_is_kept() -> None:
    failed = collect_failed(Scripted(reply=lambda: raise_error(EnvironmentFailed("broken\nline", "its trace"))))
    assert failed == Failed("scripted", 0, "broken line", "its trace")


def test_a_reply_that_neither_answers_nor_ends_fails() -> None:
    assert "neither answered" in collect_failed(Scripted(reply=lambda: Reply(done=False))).reason


def test_the_text_of_a_failure_is_bounded() -> None:
    failed = collect_failed(Scripted(reward=lambda: raise_error(ValueError("x" * 100_000))))
    assert len(failed.reason) == 300
    assert len(failed.trace) == 8_000


@pytest.mark.parametrize("limits", [{"source": TaskSource(kind="reverse-text", limit_s=1.0)}, {"limit_s": 2.0}])
def test_an_environment_that_hangs_fails_the_rollout(limits: dict[str, Any]) -> None:
    release = threading.Event()
    failed = collect_failed(Scripted(reward=release.wait), **limits)
    release.set()
    assert "the score of scripted took longer than" in failed.reason


def test_hanging_calls_are_bounded_in_number() -> None:
    calls, release = LimitedCalls(max_hanging=2), threading.Event()
    for _ in range(2):
        with pytest.raises(EnvironmentFailed, match="took longer"):
            calls.call(release.wait, 0.01, "the score")
    with pytest.raises(EnvironmentFailed, match="2 earlier calls still hang"):
        calls.call(lambda: 1, 10, "the score")
    hanging = [caller.thread for caller in calls._hanging]
    release.set()
    for thread in hanging:
        thread.join(10)
        assert not thread.is_alive()
    assert calls.call(lambda: 1, 10, "the score") == 1


def test_a_thread_is_used_again() -> None:
    calls = LimitedCalls()
    assert len({calls.call(threading.get_ident, 10, "the score") for _ in range(20)}) == 1
    calls.close()


def test_a_failed_engine_is_no_failed_environment() -> None:
    with pytest.raises(EngineError):
        collect(assign(built_in("reverse-text")), means(FunctionEngine(lambda _: raise_error(EngineError("gone")))))


def test_spans_separate_tools_from_the_rest_of_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "spans"
    tools = means(FunctionEngine(calculate), spans=str(path))
    collect(assign(built_in("calculator", tool_delay_s=0.01), lane="rollout-3"), tools)
    tools.spans.flush()
    spans = list(read_spans(path))
    assert {span.lane for span in spans} == {"rollout-3"}
    assert [span.component for span in spans].count("environment") == 4  # task, two turns, score
    slept_s = max(span.end_s - span.start_s for span in spans if span.component == "tool")
    assert slept_s >= 0.01
