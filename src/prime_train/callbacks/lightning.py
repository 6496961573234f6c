"""A callback for the Trainer of Lightning, under both names of its package."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

from prime_train import live
from prime_train.callbacks.settings import SettingsInForce

_CKPT_PATH = 4  # its place among the arguments of Trainer.fit after the model (lightning 2.6.6)


class _Reports:
    """The methods of the callback. On a stop request it saves where the trainer saves, and ends the training."""

    def __init__(self) -> None:
        self._step = -1
        self._begun = -1  # the steps that were done when the latest one began
        self._settings = SettingsInForce()

    def on_train_start(self, trainer: Any, module: Any) -> None:
        steps = trainer.estimated_stepping_batches
        if math.isfinite(steps) and steps > 0:
            live.total(int(steps))
        self._step = trainer.global_step

    def on_train_batch_start(self, trainer: Any, module: Any, *_: Any) -> None:
        if trainer.global_step == self._begun:  # a batch that accumulates gradients
            return
        self._begun = trainer.global_step
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        self._settings.take(self._begun, trainer.optimizers, schedulers)

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
        if trainer.global_step == self._step:  # a batch that accumulates gradients
            return
        self._step = trainer.global_step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        live.step(self._step, loss=loss)
        stops, saves = live.should_stop(), live.should_save()
        if (stops or saves) and not trainer.should_stop:
            live.phase("checkpoint")
            trainer.save_checkpoint(name_checkpoint(trainer))
        if stops and not trainer.should_stop:
            # A minimum is about early stopping: lightning 2.6 trains on until it is met.
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = 0
            trainer.should_stop = True

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        if not trainer.sanity_checking:
            live.phase("evaluate")

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
        live.phase("checkpoint")

    def on_train_end(self, trainer: Any, module: Any) -> None:
        live.phase("export")  # a script may save or test a whole model from here on, without a step
        if not live.should_stop():
            live.finish()


def name_checkpoint(trainer: Any) -> Path:
    """The path of a checkpoint at this step, beside those of the script and named as Lightning names them."""
    own = trainer.checkpoint_callback
    folder = getattr(own, "dirpath", None) or Path(trainer.default_root_dir) / "checkpoints"
    return Path(folder) / f"epoch={trainer.current_epoch}-step={trainer.global_step}.ckpt"


def add_to(trainer: type, callback: type) -> None:
    """Give each Trainer the callback, and let `fit` continue from the checkpoint that the supervisor chose.

    `callback`: the base class of callbacks in the same package, which the trainer asks for.
    """
    lightning_live = type("LightningLive", (_Reports, callback), {})
    create, fit = trainer.__init__, trainer.fit  # type: ignore[misc, attr-defined]

    @functools.wraps(create)
    def create_with_callback(self: Any, *args: Any, **options: Any) -> None:
        create(self, *args, **options)
        self.callbacks.append(lightning_live())

    @functools.wraps(fit)
    def fit_from_newest(self: Any, model: Any, *args: Any, **options: Any) -> Any:
        chosen = live.resume_path()
        if chosen is not None:
            args, options = args[: _CKPT_PATH - 1], {**options, "ckpt_path": chosen}
            live.note(f"Lightning resumes from {chosen}")
        return fit(self, model, *args, **options)

    trainer.__init__ = create_with_callback  # type: ignore[misc]
    trainer.fit = fit_from_newest  # type: ignore[attr-defined]
