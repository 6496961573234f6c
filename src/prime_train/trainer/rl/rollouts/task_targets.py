"""The environments of [[tasks]] as evaluation targets of a run without rollouts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prime_train.core.chat_template import find_template
from prime_train.environments.environment import Environment
from prime_train.environments.load import open_environments
from prime_train.events import Phase, TasksEvaluated
from prime_train.spec import RunSpec
from prime_train.spec.answers import launched_server, rl_settings
from prime_train.spec.rl import TaskSource
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.build import gather_weights
from prime_train.trainer.chats.chat_tokenizer import load_chat_tokenizer
from prime_train.trainer.chats.chat_tokens import ChatTokenizer, PlainChat
from prime_train.trainer.chats.lost_parts import refuse_lost_tools
from prime_train.trainer.device import Device
from prime_train.trainer.loops.step import Training
from prime_train.trainer.model.decoder import ModelConfig
from prime_train.trainer.rl.engines.engine import Engine
from prime_train.trainer.rl.engines.local_engine import LocalEngine
from prime_train.trainer.rl.engines.select import open_vllm
from prime_train.trainer.rl.rollouts.collect import Assignment, ChatTokens
from prime_train.trainer.rl.rollouts.rollout import Failures, Outcome, Rollout
from prime_train.trainer.rl.rollouts.rollout_queue import RolloutPool
from prime_train.trainer.tokenizer import LoadedTokenizer

_REPORT_EVERY_S = 10.0


def evaluate_tasks(attempt: Attempt, environments: Sequence[Environment], pool: RolloutPool, step: int) -> None:
    """Emit TasksEvaluated or RolloutsFailed for each environment. Raises UserError and EngineError."""
    run = attempt.run
    asked = [
        [pool.submit(_assign(attempt, environment, source, number)) for number in range(run.eval.tasks)]
        for environment, source in zip(environments, run.tasks, strict=True)
    ]
    _wait_for_all(attempt, [future for futures in asked for future in futures])
    failures = Failures(attempt.number, rl_settings(run).max_failed_ratio)
    for environment, futures in zip(environments, asked, strict=True):
        outcomes = [future.result() for future in futures]
        for outcome in outcomes:
            failures.add(outcome)
        scored = [outcome for outcome in outcomes if isinstance(outcome, Rollout)]
        if scored:
            attempt.emit(_describe(attempt, step, environment.name, scored, len(outcomes) - len(scored)))
    for event in failures.report(step):
        attempt.emit(event)
    failures.check()


def _assign(attempt: Attempt, environment: Environment, source: TaskSource, number: int) -> Assignment:
    policy = rl_settings(attempt.run)
    return Assignment(
        environment=environment,
        source=source,
        split="held_out",
        task=number,
        seed=0,  # the most probable token needs none
        answer_tokens=attempt.run.eval.task_tokens or policy.answer_tokens,
        temperature=0.0,
        limit_s=policy.rollout_limit_s,
        lane=f"evaluate-{environment.name}-{number}",
    )


def _wait_for_all(attempt: Attempt, asked: Sequence[Future[Outcome]]) -> None:
    """Wait, and report each progress, so that a long evaluation does not count as a hang."""
    pending = set(asked)
    reported_s = time.monotonic()
    while pending:
        done, pending = wait(pending, _REPORT_EVERY_S)
        for future in done:
            future.result()  # raises EngineError
        if done and pending and time.monotonic() - reported_s >= _REPORT_EVERY_S:
            reported_s = time.monotonic()
            finished = len(asked) - len(pending)
            attempt.emit(Phase(attempt.number, "evaluate", f"{finished} of {len(asked)} held-out tasks"))


def _describe(attempt: Attempt, step: int, name: str, scored: Sequence[Rollout], failed: int) -> TasksEvaluated:
    return TasksEvaluated(
        attempt=attempt.number,
        step=step,
        environment=name,
        reward=sum(rollout.reward for rollout in scored) / len(scored),
        tasks=len(scored),
        failed=failed,
        answer_tokens=sum(rollout.answer_tokens for rollout in scored) / len(scored),
    )


MAX_SLOTS = 16  # answers that are generated together, because each has a KV cache beside the training's memory


@dataclass(frozen=True, slots=True)
class TaskTargets:
    """Held-out tasks on rank 0, and the tokens of their chats. `engine`: that of a vLLM server; None = local."""

    environments: Sequence[Environment]
    chat: ChatTokens | None
    config: ModelConfig
    engine: Engine | None = None

    def measure(self, attempt: Attempt, training: Training, step: int) -> None:
        """Let the model answer the held-out tasks, without a random number. Every rank calls it and waits."""
        if not attempt.run.tasks:
            return
        weights = gather_weights(training.model)
        if self.chat is not None:
            self._ask(attempt, training, weights, step, self.chat)
        training.world.wait_long()

    def _ask(self, attempt: Attempt, training: Training, weights: dict[str, Any], step: int, chat: ChatTokens) -> None:
        """Hand the weights to the engine, and pose the tasks. The local engine exists only meanwhile."""
        count = attempt.run.eval.tasks * len(self.environments)
        slots = min(count, MAX_SLOTS if self.engine is None else rl_settings(attempt.run).concurrency)
        engine = self.engine or LocalEngine(
            self.config,
            ctx_tokens=attempt.run.data.ctx_tokens,
            slots=slots,
            device=training.device.torch,
            dtype=torch.bfloat16 if training.device.compute == "bf16" else torch.float32,
        )
        pool = RolloutPool(engine, chat, slots)
        try:
            if self.engine is not None:
                attempt.emit(Phase(attempt.number, "evaluate", f"vLLM gets the weights of step {step}"))
            engine.update(weights, step)
            evaluate_tasks(attempt, self.environments, pool, step)
        finally:
            pool.close()
            if self.engine is None:
                engine.close()

    def close(self) -> None:
        for environment in self.environments:
            environment.close()
        if self.engine is not None:
            self.engine.close()


def open_targets(attempt: Attempt, tokenizer: LoadedTokenizer, config: ModelConfig, device: Device) -> TaskTargets:
    """Raises UserError if an environment cannot be opened."""
    run, server = attempt.run, launched_server(attempt.run)
    if attempt.rank != 0 or not run.tasks:
        return TaskTargets((), None, config)
    chat = _open_chat(run, tokenizer)
    environments = open_environments(run.tasks, run.run.seed)
    if isinstance(chat, ChatTokenizer):
        with ExitStack() as failed:
            for environment in environments:
                failed.callback(environment.close)
            refuse_lost_tools(environments, chat.template)
            failed.pop_all()
    engine = open_vllm(attempt, server, config, device) if server is not None else None
    return TaskTargets(environments, chat, config, engine)


def _open_chat(run: RunSpec, tokenizer: LoadedTokenizer) -> ChatTokens:
    """The chat template that the model was trained with. A model of plain text gets the tasks as plain text."""
    if run.run.kind == "sft" or (run.tokenizer.path is not None and find_template(Path(run.tokenizer.path))):
        return load_chat_tokenizer(run)
    return PlainChat(tokenizer)
