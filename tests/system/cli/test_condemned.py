"""A checkpoint that raises an exception nobody lists is taken once, and the run goes on from the one before it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from prime_train.checkpoints import dcp, layout
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointUnreadable, LaunchAsked, read
from tests.unit.cli import small

START = "import sys; from prime_train.cli.entry import main; sys.exit(main())"


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", START, "run", "run.toml", "--no-validate"],
        cwd=folder,
        env=os.environ | {"PRIME_TRAIN_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def spoil(checkpoint: Path) -> None:
    """Every byte is as its manifest names it, but the position of the run is no position."""
    stored, _ = dcp.entries((checkpoint / dcp.METADATA).read_bytes())
    entry = next(one for one in stored if one.name == "reached")
    text = io.BytesIO()
    torch.save(json.dumps({"unheard": 1}), text, _use_new_zipfile_serialization=False)
    content = bytearray((checkpoint / entry.file).read_bytes())
    content[entry.offset : entry.offset + entry.length] = text.getvalue().ljust(entry.length, b"\0")
    (checkpoint / entry.file).write_bytes(content)
    layout.write_manifest(checkpoint, 12)


@pytest.mark.usefixtures("forked_trainers")
def test_a_checkpoint_with_an_unknown_fault_is_left_for_the_one_before_it(tmp_path: Path) -> None:
    small.write(tmp_path)
    first = run(tmp_path)
    assert first.returncode == 0, first.stdout + first.stderr
    run_dir = RunDir(tmp_path / "runs" / "small")
    spoil(run_dir.checkpoint(12))
    config = tmp_path / "run.toml"
    config.write_text(config.read_text().replace("max_steps = 12", "max_steps = 16"))
    second = run(tmp_path)
    assert second.returncode == 0, second.stdout + second.stderr
    found = [record.event for record in read(run_dir.events)]
    assert [event.resume_step for event in found if isinstance(event, LaunchAsked)] == [0, 12, 8]
    assert [event.step for event in found if isinstance(event, CheckpointUnreadable)] == [12]
    assert next(one.step for one in layout.scan(run_dir.checkpoints, hashes=True) if one.complete) == 16
