"""A callback for the Trainer of transformers, and so for TRL, axolotl, LLaMA-Factory and ms-swift."""

from __future__ import annotations

import functools
from typing import Any

from transformers import TrainerCallback

from prime_train import live
from prime_train.callbacks.settings import SettingsInForce


class HuggingFaceLive(TrainerCallback):
    """Reports steps and phases, and takes settings. On a stop request the trainer saves at the next step, and ends."""

    def __init__(self) -> None:
        self._evaluates = False
        self._settings = SettingsInForce()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.max_steps > 0:
            live.total(state.max_steps)

    def on_step_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, lr_scheduler: Any = None, **_: Any
    ) -> None:
        self._settings.take(state.global_step, [optimizer] if optimizer is not None else [], [lr_scheduler])

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        live.step(state.global_step)
        if live.should_stop():
            control.should_save = True
            control.should_training_stop = True
        elif live.should_save():
            control.should_save = True
        # Transformers 5.24 evaluates before it saves, and its own callback, which comes first, has set both by now.
        if control.should_save and not control.should_evaluate:
            live.phase("checkpoint")

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "loss" in logs and state.global_step > 0:
            live.step(state.global_step, loss=logs["loss"])

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if not self._evaluates:
            self._evaluates = True
            live.phase("evaluate")

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._evaluates = False
        live.phase("checkpoint" if control.should_save else "train")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        live.phase("train")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        live.phase("export")  # a script may save or push a whole model from here on, without a step
        # Early stopping is an end, too. A trainer that saves on SIGTERM by itself comes here after it.
        saves_by_itself = getattr(args, "enable_jit_checkpoint", False)
        if state.global_step >= state.max_steps or not (live.should_stop() or saves_by_itself):
            live.finish()


def add_to(trainer: type) -> None:
    """Give each Trainer the callback, and let `train` continue from the checkpoint that the supervisor chose."""
    create, train = trainer.__init__, trainer.train  # type: ignore[misc, attr-defined]

    @functools.wraps(create)
    def create_with_callback(self: Any, *args: Any, **options: Any) -> None:
        create(self, *args, **options)
        if not any(isinstance(callback, HuggingFaceLive) for callback in self.callback_handler.callbacks):
            self.add_callback(HuggingFaceLive())

    @functools.wraps(train)
    def train_from_newest(self: Any, resume_from_checkpoint: Any = None, *args: Any, **options: Any) -> Any:
        chosen = live.resume_path()
        # False is the script's own refusal. Another path is older than the one that the supervisor chose.
        if chosen is not None and resume_from_checkpoint is not False:
            if resume_from_checkpoint != chosen:
                live.note(f"transformers resumes from {chosen}")
            resume_from_checkpoint = chosen
        return train(self, resume_from_checkpoint, *args, **options)

    trainer.__init__ = create_with_callback  # type: ignore[misc]
    trainer.train = train_from_newest  # type: ignore[attr-defined]
