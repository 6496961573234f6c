"""Prepares what every loop trains with: the model, its optimizer, and its checkpoints. Takes no step."""

from __future__ import annotations

from dataclasses import dataclass

from prime_train.trainer.attempt import Attempt
from prime_train.trainer.build import load_config, set_up_training
from prime_train.trainer.device import Device
from prime_train.trainer.loops.step import Training
from prime_train.trainer.model.decoder import ModelConfig, flops_per_token
from prime_train.trainer.parallel import World
from prime_train.trainer.run_tokenizer import check_tokenizer, keep_tokenizer
from prime_train.trainer.saves.checkpoint import Checkpointer, TrainPosition
from prime_train.trainer.tokenizer import LoadedTokenizer


@dataclass(frozen=True, slots=True)
class Ready:
    """What a loop trains with, set up once. `reached`: the position before its first step."""

    training: Training
    config: ModelConfig
    tokenizer: LoadedTokenizer
    checkpointer: Checkpointer
    reached: TrainPosition
    flops_per_token: float


def get_ready(attempt: Attempt, tokenizer: LoadedTokenizer, device: Device, world: World) -> Ready:
    """The model and its optimizer, as new or from the checkpoint of the attempt. Raises UserError."""
    # Before the model is built, so that a run with another tokenizer ends without loading weights.
    keep_tokenizer(attempt, tokenizer)
    check_tokenizer(attempt, tokenizer)
    config = load_config(attempt.run, tokenizer)
    training, reached = set_up_training(attempt, config, device, world)
    checkpointer = Checkpointer(attempt, training.world, training.device.torch)
    return Ready(
        training, config, tokenizer, checkpointer, reached, flops_per_token(config, attempt.run.data.ctx_tokens)
    )
