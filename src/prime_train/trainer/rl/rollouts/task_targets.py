"""The environments of [[tasks]] as evaluation targets of a run without rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prime_train.core.chat_template import find_template
from prime_train.environments.environment import Environment
from prime_train.environments.load import open_environments
from prime_train.events import Phase
from prime_train.spec import RunSpec
from prime_train.spec.answers import launched_server, rl_settings
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.build import gather_weights
from prime_train.trainer.chats.chat_tokenizer import load_chat_tokenizer
from prime_train.trainer.chats.chat_tokens import ChatTokenizer
from prime_train.trainer.chats.lost_parts import refuse_lost_tools
from prime_train.trainer.chats.plain_chat import PlainChat
from prime_train.trainer.device import Device
from prime_train.trainer.loops.step import Training
from prime_train.trainer.model.decoder import ModelConfig
from prime_train.trainer.rl.engines.engine import Engine
from prime_train.trainer.rl.engines.local_engine import LocalEngine
from prime_train.trainer.rl.engines.select import open_vllm
from prime_train.trainer.rl.rollouts.collect import ChatTokens
from prime_train.trainer.rl.rollouts.evaluate_tasks import evaluate_tasks
from prime_train.trainer.rl.rollouts.rollout_pool import RolloutPool
from prime_train.trainer.tokenizer import Tokenizer

MAX_SLOTS = 16  # answers that are generated together, because each has a KV cache beside the training's memory


@dataclass(frozen=True, slots=True)
class TaskTargets:
    """Held-out tasks and the tokens of their chats. Rank 0 has `environments`; the other ranks have none.

    `engine`: that of the run's vLLM server; None = the trainer generates by itself.
    """

    environments: Sequence[Environment]
    chat: ChatTokens | None
    config: ModelConfig
    engine: Engine | None = None

    def measure(self, attempt: Attempt, training: Training, step: int) -> None:
        """Let the model answer the held-out tasks. Every rank must call it: weights may be sharded, and all wait.

        It draws no random numbers and leaves the model as it is.
        """
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


def open_targets(attempt: Attempt, tokenizer: Tokenizer, config: ModelConfig, device: Device) -> TaskTargets:
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


def _open_chat(run: RunSpec, tokenizer: Tokenizer) -> ChatTokens:
    """The chat template that the model was trained with. A model of plain text gets the tasks as plain text."""
    if run.run.kind == "sft" or (run.tokenizer.path is not None and find_template(Path(run.tokenizer.path))):
        return load_chat_tokenizer(run)
    return PlainChat(tokenizer)
