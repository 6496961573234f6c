"""TRL's GRPOTrainer on a Hugging Face folder, generating with transformers in its own process.

As fast as its documentation allows on a CPU: the static cache (dynamic: the same within 5 %; continuous batching: about
30 times slower), no gradient checkpointing, no logging, no saving, no progress bar, the fused optimizer, one forward
for the whole batch, no reference model and no second forward for old log-probabilities.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
import trl

from anchors import BETAS, CLIP_NORM, WEIGHT_DECAY


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What both loops do."""

    folder: Path  # weights, tokenizer and chat template
    prompts: Sequence[Sequence[dict[str, str]]]  # messages, one chat for each group
    score: Callable[[int, str], float]  # number of the prompt and the answer's text -> reward
    batch: int  # rollouts of a step
    group_size: int
    answer_tokens: int
    lr: float


@dataclass(frozen=True, slots=True)
class Block:
    """The totals of some steps in a row."""

    steps: int
    seconds: float
    cpu_s: float  # of all threads
    answer_tokens: int
    reward: float  # mean


def prompt_tokens(settings: Settings, number: int) -> list[int]:
    """The tokens of a prompt as the trainer computes them."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(settings.folder)
    chat = [dict(message) for message in settings.prompts[number]]
    tokens: list[int] = tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    return tokens


def run_block(settings: Settings, steps: int, seed: int) -> Block:
    """Train for some steps from the weights of the folder. The set-up before the first step is not measured."""
    clock, scored = _Clock(), _Scored(settings.score)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(settings.folder, dtype=torch.float32)
    model.config.use_cache = True
    with _quiet(), tempfile.TemporaryDirectory() as folder:
        trainer = trl.GRPOTrainer(
            model=model,
            processing_class=transformers.AutoTokenizer.from_pretrained(settings.folder),
            reward_funcs=scored,
            args=_arguments(settings, folder, steps, seed),
            train_dataset=datasets.Dataset.from_list(
                [{"prompt": list(prompt), "number": number} for number, prompt in enumerate(settings.prompts)]
            ),
            callbacks=[clock],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
    reward = sum(scored.rewards) / len(scored.rewards)
    return Block(steps, clock.seconds, clock.cpu_s, scored.answer_tokens, reward)


def _arguments(settings: Settings, folder: str, steps: int, seed: int) -> Any:
    return trl.GRPOConfig(
        output_dir=folder,
        seed=seed,
        max_steps=steps,
        per_device_train_batch_size=settings.batch,
        num_generations=settings.group_size,
        max_completion_length=settings.answer_tokens,
        temperature=1.0,
        cache_implementation="static",
        beta=0.0,
        loss_type="dapo",  # a mean over the tokens of the batch, as in the other loop
        scale_rewards="group",
        mask_truncated_completions=True,
        learning_rate=settings.lr,
        lr_scheduler_type="constant",
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=CLIP_NORM,
        optim="adamw_torch_fused",
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        dataloader_num_workers=0,  # the prompts are in memory
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )


class _Clock(transformers.TrainerCallback):
    """Wall and CPU seconds from the begin of the first step to the end of the last. A step includes its rollouts."""

    def __init__(self) -> None:
        self.seconds = self.cpu_s = 0.0
        self._began: tuple[float, float] | None = None

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if self._began is None:
            self._began = (time.perf_counter(), time.process_time())

    def on_step_end(self, *_: Any, **__: Any) -> None:
        if self._began is not None:
            self.seconds, self.cpu_s = time.perf_counter() - self._began[0], time.process_time() - self._began[1]


class _Scored:
    """The reward function, and the answers it has seen."""

    __name__ = "score"

    def __init__(self, score: Callable[[int, str], float]) -> None:
        self._score = score
        self.rewards: list[float] = []
        self.answer_tokens = 0

    def __call__(self, completions: Any, completion_ids: Any, number: list[int], **_: Any) -> list[float]:
        rewards = [self._score(task, chat[0]["content"]) for task, chat in zip(number, completions, strict=True)]
        self.rewards += rewards
        self.answer_tokens += sum(map(len, completion_ids))
        return rewards


def _quiet() -> Any:
    """Nothing on the terminal: the results are JSON lines on stdout."""
    import contextlib

    transformers.utils.logging.set_verbosity_error()
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    return contextlib.redirect_stdout(None)
