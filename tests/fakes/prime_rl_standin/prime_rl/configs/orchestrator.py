"""The orchestrator's root. Its union names no discriminator."""

from __future__ import annotations

from pydantic import Field, model_validator

from .shared import FilesystemConfig, JudgeConfig, NcclConfig, SamplingConfig, SourceConfig, Strict


class TrainConfig(Strict):
    source: list[SourceConfig] = Field(default_factory=list)
    sampling: SamplingConfig = SamplingConfig()


class OrchestratorConfig(Strict):
    train: TrainConfig = TrainConfig()
    weight_broadcast: FilesystemConfig | NcclConfig = FilesystemConfig()
    judges: dict[str, JudgeConfig] = Field(default_factory=dict)
    batch_size: int | None = Field(default=None, ge=1)
    group_size: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _whole_groups(self) -> OrchestratorConfig:
        if self.batch_size is not None and self.batch_size % self.group_size:
            raise ValueError("batch_size must divide by group_size")
        return self
