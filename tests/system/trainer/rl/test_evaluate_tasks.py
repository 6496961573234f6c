"""The evaluation on held-out tasks: rewards of the most probable answers, failures, and runs without rollouts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.environments.environment import Environment
from prime_train.environments.load import open_environments
from prime_train.events import Event, EventLog, RolloutsFailed, TasksEvaluated
from prime_train.spec.rl import TaskSource
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.chats.chat_tokens import PlainChat
from prime_train.trainer.loops.step import Training, adamw
from prime_train.trainer.parallel import World
from prime_train.trainer.rl.engines.engine import EngineError
from prime_train.trainer.rl.rollouts.rollout_queue import RolloutPool
from prime_train.trainer.rl.rollouts.task_targets import TaskTargets, evaluate_tasks, open_targets
from prime_train.trainer.tokenizer import LoadedTokenizer
from tests.unit.trainer import tiny
from tests.unit.trainer.rl.chats import END, TURN, CharacterChat, FunctionEngine, Scripted

SOURCES = (TaskSource(kind="reverse-text"), TaskSource(kind="sort-digits"))
ALPHABET = "\n :" + "abcdefghijklmnopqrstuvwxyz" + "RSO" + "0123456789"


def open_attempt(tmp_path: Path, sources: tuple[TaskSource, ...] = SOURCES, tasks: int = 12) -> Attempt:
    run = replace(
        tiny.run_spec(tmp_path, eval=spec.Eval(tasks=tasks), data=spec.Data(sources=(), ctx_tokens=64)), tasks=sources
    )
    run_dir = tiny.prepare(tmp_path / "run", run)
    return Attempt(run, run_dir, 1, 0, EventLog(run_dir.events, "trainer-001-rank0"), 0)


def evaluate(
    tmp_path: Path, answer: Callable[[str], str], environments: tuple[Environment, ...] | None = None
) -> list[Event]:
    attempt = open_attempt(tmp_path, SOURCES[: len(environments)] if environments else SOURCES)
    opened = environments or open_environments(SOURCES, 7)
    engine = FunctionEngine(answer)
    pool = RolloutPool(engine, CharacterChat(), 4)
    try:
        evaluate_tasks(attempt, opened, pool, step=40)
    finally:
        pool.close()
        assert {request.temperature for request in engine.requests} <= {0.0}
    return list(tiny.events(attempt.run_dir))


def solve(prompt: str) -> str:
    task, _, text = prompt.removesuffix(END + TURN).partition(": ")
    return text[::-1] if task == "Reverse" else "x"


def test_each_environment_has_its_mean_reward(tmp_path: Path) -> None:
    first, second = evaluate(tmp_path, solve)
    assert isinstance(first, TasksEvaluated)
    assert isinstance(second, TasksEvaluated)
    assert (first.environment, first.reward, first.tasks, first.failed, first.step) == ("reverse-text", 1.0, 12, 0, 40)
    assert (second.environment, second.reward, second.answer_tokens) == ("sort-digits", 0.0, 2.0)


def test_failed_tasks_have_no_reward(tmp_path: Path) -> None:
    rewards = iter([math.nan, *[0.5] * 11])
    evaluated, failed = evaluate(tmp_path, solve, (Scripted(reward=lambda: next(rewards)),))
    assert isinstance(evaluated, TasksEvaluated)
    assert isinstance(failed, RolloutsFailed)
    assert (evaluated.reward, evaluated.tasks, evaluated.failed) == (0.5, 11, 1)
    assert (failed.failed, failed.asked) == (1, 12)


def test_an_environment_that_always_fails_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="12 of the last 12 rollouts failed"):
        evaluate(tmp_path, solve, (Scripted(reward=lambda: math.nan),))


def test_a_failed_engine_ends_the_evaluation(tmp_path: Path) -> None:
    def fail(_: str) -> str:
        raise EngineError("gone")

    with pytest.raises(EngineError, match="gone"):
        evaluate(tmp_path, fail)


def characters() -> LoadedTokenizer:
    """Each character is a token; the last token ends a text."""
    return LoadedTokenizer(
        encode_batch=lambda texts: [[ALPHABET.index(character) for character in text] for text in texts],
        decode=lambda tokens: "".join(ALPHABET[token] if token < len(ALPHABET) else "" for token in tokens),
        vocab_size=64,
        eos_id=63,
        files=(),
        fingerprint="",
    )


def test_plain_text_is_a_line_for_each_message() -> None:
    chat = PlainChat(characters())
    tokens = chat.prompt_tokens(open_environments(SOURCES, 1)[0].task("train", 0).messages, ())
    assert chat.tokenizer.decode(tokens).startswith("Re") or chat.tokenizer.decode(tokens).startswith("R")
    assert tokens[-1] == 0
    assert chat.stop_tokens == {0, 63}
    assert chat.parse_answer([3, 4, 0, 5], ()).content == "ab"


def test_a_run_without_rollouts_answers_held_out_tasks(tmp_path: Path) -> None:
    attempt = open_attempt(tmp_path)
    model = tiny.decoder()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    training = Training(model, adamw(model, spec.Optim()), World(rank=0, size=1), tiny.CPU, None)
    random_state = torch.get_rng_state()
    targets = TaskTargets(open_environments(SOURCES, 1), PlainChat(characters()), tiny.CONFIG)
    targets.measure(attempt, training, 3)
    targets.close()
    found = [event for event in tiny.events(attempt.run_dir) if isinstance(event, TasksEvaluated)]
    assert [(event.environment, event.step, event.tasks) for event in found] == [
        ("reverse-text", 3, 12),
        ("sort-digits", 3, 12),
    ]
    assert all(0 <= event.reward < 0.9 for event in found)
    assert torch.equal(random_state, torch.get_rng_state())
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


def test_other_ranks_and_runs_without_tasks_open_nothing(tmp_path: Path) -> None:
    attempt = open_attempt(tmp_path)
    assert open_targets(replace(attempt, rank=1), characters(), tiny.CONFIG, tiny.CPU).chat is None
    assert open_targets(open_attempt(tmp_path, ()), characters(), tiny.CONFIG, tiny.CPU).environments == ()


def test_a_pretraining_run_evaluates_its_tasks(texts: Path, tmp_path: Path) -> None:
    run = replace(tiny.run_spec(texts, eval=spec.Eval(interval_steps=4, tasks=4)), tasks=SOURCES)
    run_dir = tiny.prepare(tmp_path / "run", run)
    code, output = tiny.train(run_dir)
    assert code == 0, output
    found = [event for event in tiny.events(run_dir) if isinstance(event, TasksEvaluated)]
    last = run.run.max_steps
    assert [event.step for event in found if event.environment == "sort-digits"] == [*range(4, last, 4), last]
