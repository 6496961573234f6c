"""The root of a whole run."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from tests.fakes.prime_rl_standin.prime_rl.configs.inference import InferenceConfig
from tests.fakes.prime_rl_standin.prime_rl.configs.orchestrator import OrchestratorConfig
from tests.fakes.prime_rl_standin.prime_rl.configs.shared import CheckpointConfig, Strict
from tests.fakes.prime_rl_standin.prime_rl.configs.trainer import TrainerConfig


class RLConfig(Strict):
    trainer: TrainerConfig
    orchestrator: OrchestratorConfig
    inference: InferenceConfig | None = None
    ckpt: CheckpointConfig | None = None
    output_dir: Path = Path("outputs")
    max_steps: int | None = Field(default=None, ge=1)
