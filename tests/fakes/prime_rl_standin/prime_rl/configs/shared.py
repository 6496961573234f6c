"""Pieces that several roots share: strict models, discriminated unions, aliases, bounds, validators."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_validator


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CheckpointConfig(Strict):
    interval: Annotated[int | None, Field(ge=1)] = None
    keep_last: Annotated[int, Field(ge=1)] | None = None
    output_dir: Path | None = None


class ConstantConfig(Strict):
    type: Literal["constant"] = "constant"


class LinearConfig(Strict):
    type: Literal["linear"] = "linear"
    warmup_steps: int = Field(default=10, ge=0)
    min_lr: float = Field(default=0.0, ge=0)


class CosineConfig(Strict):
    type: Literal["cosine"] = "cosine"
    warmup_steps: int = Field(default=10, ge=0)


Scheduler = Annotated[ConstantConfig | LinearConfig | CosineConfig, Field(discriminator="type")]


class FilesystemConfig(Strict):
    type: Literal["filesystem"] = "filesystem"


class NcclConfig(Strict):
    type: Literal["nccl"] = "nccl"
    port: int = Field(default=29501, ge=1, le=65535)


class VllmConfig(BaseModel):
    """Whatever vLLM takes passes."""

    model_config = ConfigDict(extra="allow")

    model: str = "Qwen/Qwen3-0.6B"
    max_model_len: int | None = None
    gpu_memory_utilization: float = Field(default=0.9, gt=0, lt=1)


class SamplingConfig(Strict):
    max_completion_tokens: int | None = Field(
        default=None, validation_alias=AliasChoices("max_completion_tokens", "max_tokens"), ge=1
    )
    temperature: float = Field(default=1.0, ge=0)
    extra_body: dict[str, Any] = Field(default_factory=dict)

    @field_validator("temperature")
    @classmethod
    def _sensible(cls, value: float) -> float:
        if value > 2:
            raise ValueError("temperature above 2 samples noise")
        return value


class SourceConfig(Strict):
    id: str
    ratio: float | None = Field(default=None, gt=0)
    tags: list[str] = []
    rewards: dict[str, float] = {}


class JudgeConfig(Strict):
    model: str
    next: JudgeConfig | None = None
