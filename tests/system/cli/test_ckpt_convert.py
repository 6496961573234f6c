"""`prime-train ckpt to-hf` and `consolidate`, as commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from prime_train.checkpoints import layout
from prime_train.core.rundir import RunDir
from tests.system.checkpoints.test_archive import content
from tests.unit.cli.commands import prime_train
from tests.unit.trainer import tiny
from tests.unit.trainer.saves.test_convert_checkpoint import STEP, own_export, saved


def test_a_stopped_run_is_exported_and_consolidated(tmp_path: Path) -> None:
    texts = tiny.write_texts(tmp_path / "texts")
    run_dir, training = saved(tmp_path / "runs" / "tiny", tiny.run_spec(texts))
    expected = own_export(run_dir, training)
    shutil.rmtree(run_dir.final)
    shutil.rmtree(texts)  # the tokenizer is kept with the run
    incomplete = run_dir.checkpoint(STEP + 1)
    incomplete.mkdir()

    planned = json.loads(prime_train("ckpt", "to-hf", "tiny", "--dry-run", "--json", cwd=tmp_path).stdout)
    assert not run_dir.exports.exists()
    done = prime_train("ckpt", "to-hf", "tiny", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == planned | {"dry_run": False}
    assert (document["run"], document["step"]) == ("tiny", STEP)
    assert content(Path(document["path"])) == expected

    again = prime_train("ckpt", "to-hf", "tiny", cwd=tmp_path)
    assert again.returncode == 2
    assert "it exists already" in again.stderr
    assert content(Path(document["path"])) == expected
    refused = prime_train("ckpt", "to-hf", "tiny", "--step", str(STEP + 1), cwd=tmp_path)
    assert refused.returncode == 2
    assert "is not complete" in refused.stderr

    made = prime_train("ckpt", "consolidate", "tiny", "--model-only", "--output", "out", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert f"tensors of step {STEP}" in made.stdout
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model.safetensors", "training.json"]


def test_a_run_without_a_complete_checkpoint_is_refused(tmp_path: Path) -> None:
    run_dir = tiny.prepare(tmp_path / "runs" / "tiny", tiny.run_spec(tmp_path))
    RunDir(run_dir.path).checkpoint(3).mkdir(parents=True)
    assert layout.newest_complete(run_dir.checkpoints) is None
    done = prime_train("ckpt", "to-hf", "tiny", cwd=tmp_path)
    assert done.returncode == 2
    assert "the run has no complete checkpoint" in done.stderr
    assert not run_dir.exports.exists()
