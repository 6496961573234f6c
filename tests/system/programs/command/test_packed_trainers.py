"""A real trainer goes on beside packed checkpoints: it loads its newest, rotates its own, and leaves those alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from prime_train.checkpoints.packing import foreign, foreign_archive
from prime_train.checkpoints.step_folders import StepPlaces
from tests.unit.checkpoints.packing.test_foreign import describe
from tests.unit.checkpoints.test_layouts import find_layout

PYTHON = os.environ.get("PRIME_TRAIN_TEST_TRAINERS", "")
_LIGHTNING = """
import sys, torch, lightning
class Tiny(lightning.LightningModule):
    def __init__(self):
        super().__init__(); self.layer = torch.nn.Linear(300, 300)
    def training_step(self, batch, number):
        self.log("at", float(self.global_step)); return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
keep = lightning.pytorch.callbacks.ModelCheckpoint(
    dirpath="out", filename="{step}", every_n_train_steps=1, save_top_k=4, monitor="at", mode="max", save_last=True)
data = torch.utils.data.DataLoader(torch.ones(40, 300), batch_size=4)
trainer = lightning.Trainer(
    max_steps=int(sys.argv[1]), accelerator="cpu", logger=False, callbacks=[keep], enable_progress_bar=False)
trainer.fit(Tiny(), data, ckpt_path="last" if sys.argv[2:] else None)
print("at", trainer.global_step)
"""
_ORBAX = """
import os, sys, jax.numpy as jnp, orbax.checkpoint as ocp
manager = ocp.CheckpointManager(os.path.abspath("out"), options=ocp.CheckpointManagerOptions(max_to_keep=4))
first = manager.latest_step() or 0
for step in range(first + 1, int(sys.argv[1]) + 1):
    manager.save(step, args=ocp.args.StandardSave({"weights": jnp.ones((300, 300)) * step}))
manager.wait_until_finished()
print("from", first, "at", manager.latest_step())
"""


@pytest.mark.skipif(not PYTHON, reason="PRIME_TRAIN_TEST_TRAINERS names no interpreter with trainers")
@pytest.mark.parametrize(
    ("layout", "script", "said"),
    [("lightning", _LIGHTNING, "at 8"), ("orbax", _ORBAX, "from 5 at 8")],
    ids=["lightning", "orbax"],
)
def test_a_trainer_goes_on_beside_packed_checkpoints(layout: str, script: str, said: str, tmp_path: Path) -> None:
    def train(*words: str) -> str:
        started = [PYTHON, "-c", script, *words]
        return subprocess.run(started, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=240).stdout

    out = tmp_path / "out"
    places = StepPlaces(tmp_path, (out,), find_layout(layout))
    train("5")
    before = describe(out)
    for one in foreign.find_steps(places):
        if not one.obstacle:
            foreign_archive.pack(places, one)
    packed = describe(out / foreign.FOLDER)
    assert [one.step for one in foreign.list_packed(places)] == [3, 2]
    assert said in train("8", "resume")
    assert describe(out / foreign.FOLDER) == packed
    for step in (3, 2):
        foreign_archive.unpack(places, step)
    after = describe(out)
    back = [name for name in before if name.split("/")[0] in ("step=2.ckpt", "step=3.ckpt", "2", "3")]
    assert {name: after[name] for name in back} == {name: before[name] for name in back}
    assert back
