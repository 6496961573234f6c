"""The environments of [[tasks]] as evaluation targets of a run without rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from prime_train.core.chat_template import find_template
from prime_train.environments.environment import Environment
from prime_train.environments.load import open_environments
from prime_train.spec import RunSpec
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.build import gather_weights
from prime_train.trainer.chats.chat_tokenizer import load_chat_tokenizer
from prime_train.trainer.chats.plain_chat import PlainChat
from prime_train.trainer.model import ModelConfig
from prime_train.trainer.rl.collect import ChatTokens
from prime_train.trainer.rl.evaluate_tasks import evaluate_tasks
from prime_train.trainer.rl.local_engine import LocalEngine
from prime_train.trainer.rl.rollout_pool import RolloutPool
from prime_train.trainer.step import Training
from prime_train.trainer.tokenizer import Tokenizer

MAX_SLOTS = 16  # answers that are generated together, because each has a KV cache beside the training's memory


@dataclass(frozen=True, slots=True)
class TaskTargets:
    """Held-out tasks and the tokens of their chats. Rank 0 has `environments`; the other ranks have none."""

    environments: Sequence[Environment]
    chat: ChatTokens | None
    config: ModelConfig

    def evaluate(self, attempt: Attempt, training: Training, step: int) -> None:
        """Let the model answer the held-out tasks. Every rank must call it, because weights may be sharded.

        The engine exists only meanwhile. It draws no random numbers and leaves the model as it is.
        """
        if not attempt.run.tasks:
            return
        weights = gather_weights(training.model)
        if self.chat is None:
            return
        slots = min(attempt.run.eval.tasks * len(self.environments), MAX_SLOTS)
        engine = LocalEngine(
            self.config,
            ctx_tokens=attempt.run.data.ctx_tokens,
            slots=slots,
            device=training.device.torch,
            dtype=torch.bfloat16 if training.device.compute == "bf16" else torch.float32,
        )
        pool = RolloutPool(engine, self.chat, slots)
        try:
            engine.update(weights, step)
            evaluate_tasks(attempt, self.environments, pool, step)
        finally:
            pool.close()
            engine.close()

    def close(self) -> None:
        for environment in self.environments:
            environment.close()


def open_targets(attempt: Attempt, tokenizer: Tokenizer, config: ModelConfig) -> TaskTargets:
    """Raises UserError if an environment cannot be opened."""
    run = attempt.run
    if attempt.rank != 0 or not run.tasks:
        return TaskTargets((), None, config)
    return TaskTargets(open_environments(run.tasks, run.run.seed), _open_chat(run, tokenizer), config)


def _open_chat(run: RunSpec, tokenizer: Tokenizer) -> ChatTokens:
    """The chat template that the model was trained with. A model of plain text gets the tasks as plain text."""
    if run.run.kind == "sft" or (run.tokenizer.path is not None and find_template(Path(run.tokenizer.path))):
        return load_chat_tokenizer(run)
    return PlainChat(tokenizer)
