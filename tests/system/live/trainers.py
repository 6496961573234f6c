"""Scripts for trainers of other projects, and the interpreter that has their packages."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import prime_train

PACKAGE = Path(prime_train.__file__).parent
INTERPRETER_ENV = "PRIME_TRAIN_TRAINERS_PYTHON"  # a Python that has transformers with accelerate, lightning and jax


def find_interpreter(module: str) -> str:
    """The interpreter, which must have `module`; skips the test where there is none."""
    python = shutil.which(os.environ.get(INTERPRETER_ENV, ""))
    if python is None:
        pytest.skip(f"{INTERPRETER_ENV} names no interpreter")
    if subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"{python} has no {module}")
    return python


def live_environment(folder: Path) -> dict[str, str]:
    """The environment of a supervised command: `folder` is that of its attempt."""
    folder.mkdir(parents=True, exist_ok=True)
    return {**os.environ, "PRIME_TRAIN_LIVE": str(folder), "PYTHONPATH": str(PACKAGE / "injected")}


HUGGING_FACE = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
tiny = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
rows = [{"input_ids": torch.arange(8) + n % 8, "labels": torch.arange(8) + n % 8} for n in range(64)]
arguments = TrainingArguments(
    output_dir="out", max_steps=12, save_steps=4, logging_steps=2, per_device_train_batch_size=2, use_cpu=True,
    report_to="none", disable_tqdm=True,
)
trainer = Trainer(model=LlamaForCausalLM(tiny), args=arguments, train_dataset=rows)
trainer.train()
torch.save(trainer.model.state_dict(), "weights.pt")
"""

LIGHTNING = """
import torch
import lightning

class Tiny(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        return self.layer(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(64, 4)), batch_size=4)
keep = lightning.pytorch.callbacks.ModelCheckpoint(dirpath="out", every_n_train_steps=4, save_top_k=-1)
trainer = lightning.Trainer(max_steps=12, accelerator="cpu", logger=False, callbacks=[keep], enable_progress_bar=False)
trainer.fit(Tiny(), data)
"""
