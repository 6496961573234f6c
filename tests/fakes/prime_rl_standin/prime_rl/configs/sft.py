"""The root of supervised fine-tuning."""

from __future__ import annotations

from pydantic import Field

from .shared import CheckpointConfig, ConstantConfig, Scheduler, Strict
from .trainer import ModelConfig


class DataConfig(Strict):
    name: str | None = None
    seq_len: int = Field(default=128, ge=1)
    batch_size: int = Field(default=128, ge=1)


class SFTConfig(Strict):
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    scheduler: Scheduler = ConstantConfig()
    ckpt: CheckpointConfig | None = None
    max_steps: int | None = Field(default=None, ge=1)
