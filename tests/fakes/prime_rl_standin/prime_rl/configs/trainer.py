"""The trainer's root."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .shared import CheckpointConfig, ConstantConfig, FilesystemConfig, NcclConfig, Scheduler, Strict


class LoraConfig(Strict):
    rank: int = Field(default=16, ge=1)
    target_modules: list[str] = Field(default_factory=lambda: ["q_proj", "v_proj"])


class ModelConfig(Strict):
    name: str = "Qwen/Qwen3-0.6B"
    attn: Literal["sdpa", "flash_attention_2", "flash_attention_3"] = "flash_attention_2"
    lora: LoraConfig | None = None


class TrainerConfig(Strict):
    model: ModelConfig = ModelConfig()
    scheduler: Scheduler = ConstantConfig()
    ckpt: CheckpointConfig | None = None
    weight_broadcast: Annotated[FilesystemConfig | NcclConfig, Field(discriminator="type")] = FilesystemConfig()
    max_steps: int | None = Field(default=None, ge=1)
