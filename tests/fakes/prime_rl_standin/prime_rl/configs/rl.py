"""The root of a whole run."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from .inference import InferenceConfig
from .orchestrator import OrchestratorConfig
from .shared import CheckpointConfig, Strict
from .trainer import TrainerConfig


class RLConfig(Strict):
    trainer: TrainerConfig
    orchestrator: OrchestratorConfig
    inference: InferenceConfig | None = None
    ckpt: CheckpointConfig | None = None
    output_dir: Path = Path("outputs")
    max_steps: int | None = Field(default=None, ge=1)
