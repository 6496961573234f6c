"""`ckpt prune`, `compress`, `restore` and `verify`: what they do to a run, and when they refuse."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save

from prime_train import spec
from prime_train.checkpoints import layout
from prime_train.core.errors import ExitCode
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointDeleted, read
from tests.system.checkpoints.test_archive import content
from tests.unit.checkpoints.packing.test_planes import numbers
from tests.unit.cli.commands import prime_train, supervised
from tests.unit.views.written_runs import WHOLE_LIFE, write_run

WEIGHTS = numbers("f", 40_000)


def write_steps(tmp_path: Path, *steps: int, checkpoint: spec.Checkpoint | None = None) -> RunDir:
    """The run "small", not alive, with a complete checkpoint of 160 kB of weights at each of `steps`."""
    run_dir = write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    if checkpoint is not None:
        run = spec.RunSpec(
            run=spec.Run(name="small", max_steps=100),
            data=spec.Data(sources=(spec.Source(kind="python-stdlib"),)),
            checkpoint=checkpoint,
        )
        run_dir.resolved.write_text(spec.to_json(run))
    for step in steps:
        folder = run_dir.checkpoint(step)
        folder.mkdir(parents=True)
        (folder / "__0_0.distcp").write_bytes(WEIGHTS)
        (folder / ".metadata").write_bytes(b"")
        layout.write_manifest(folder, step)
    return run_dir


def steps_of(run_dir: RunDir) -> list[int]:
    return [found.step for found in layout.scan(run_dir.checkpoints)]


def test_compress_and_restore_give_every_byte_back(tmp_path: Path) -> None:
    run_dir = write_steps(tmp_path, 50, 100)
    before = {step: content(run_dir.checkpoint(step)) for step in (50, 100)}
    planned = json.loads(prime_train("ckpt", "compress", "small", "--dry-run", "--json", cwd=tmp_path).stdout)
    assert [row["step"] for row in planned["checkpoints"]] == [100, 50]
    assert {step: content(run_dir.checkpoint(step)) for step in (50, 100)} == before

    packed = json.loads(prime_train("ckpt", "compress", "small", "--json", cwd=tmp_path).stdout)
    for row, plan in zip(packed["checkpoints"], planned["checkpoints"], strict=True):
        assert row["stored_bytes"] == sum(map(len, content(run_dir.checkpoint(row["step"])).values()))
        assert row["saved"] == pytest.approx(1 - row["stored_bytes"] / len(WEIGHTS), abs=1e-4)
        assert row["saved"] > 0.1
        assert plan["saved"] == pytest.approx(row["saved"], abs=0.02)
    verified = prime_train("ckpt", "verify", "small", cwd=tmp_path)
    assert verified.stdout.count("verified") == 2
    again = prime_train("ckpt", "compress", "small", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, "")
    assert "nothing is left to pack" in again.stderr

    restored = prime_train("ckpt", "restore", "small", cwd=tmp_path)
    assert restored.stdout.splitlines()[0].split() == ["STEP", "AS", "SAVED", "ON", "DISK", "SMALLER", "BY"]
    assert {step: content(run_dir.checkpoint(step)) for step in (50, 100)} == before


def test_one_step_is_packed_verified_and_restored_alone(tmp_path: Path) -> None:
    run_dir = write_steps(tmp_path, 50, 100)
    prime_train("ckpt", "compress", "small", "--step", "50", cwd=tmp_path)
    assert content(run_dir.checkpoint(100)) == {"__0_0.distcp": WEIGHTS, ".metadata": b""}
    assert "__0_0.distcp.planes.0" in content(run_dir.checkpoint(50))
    verified = json.loads(prime_train("ckpt", "verify", "small", "--step", "50", "--json", cwd=tmp_path).stdout)
    assert [(row["step"], row["state"]) for row in verified["checkpoints"]] == [(50, "verified")]


def test_the_list_states_what_is_packed_and_what_that_saves(tmp_path: Path) -> None:
    run_dir = write_steps(tmp_path, 50, 100)
    prime_train("ckpt", "compress", "small", "--step", "50", cwd=tmp_path)
    stored_bytes = sum(map(len, content(run_dir.checkpoint(50)).values()))
    newest, older = json.loads(prime_train("ckpt", "list", "small", "--json", cwd=tmp_path).stdout)["checkpoints"]
    assert (newest["packed"], newest["saved_bytes"], newest["lossy"]) == (False, 0, None)
    assert (older["packed"], older["saved_bytes"], older["lossy"]) == (True, len(WEIGHTS) - stored_bytes, None)
    first, second = prime_train("ckpt", "list", "small", cwd=tmp_path).stdout.splitlines()[1:]
    assert first.endswith("complete; used by a resume")
    assert re.search(r"complete; packed, saves [\d.]+ KiB \(1\d\.\d%\)$", second)


def test_moments_are_rounded_only_by_choice_and_named_lossy(tmp_path: Path) -> None:
    run_dir = write_steps(tmp_path, 50)
    folder = run_dir.checkpoint(100)
    drawn = torch.Generator().manual_seed(1)
    state = {name: torch.randn(40_000, generator=drawn) for name in ("model.a", "optimizer.a.exp_avg")}
    save(state, storage_writer=FileSystemWriter(folder, thread_count=1, sync_files=False), no_dist=True)
    layout.write_manifest(folder, 100)
    (planned,) = json.loads(
        prime_train(
            *("ckpt", "compress", "small", "--step", "100", "--moments", "bf16", "--dry-run", "--json"), cwd=tmp_path
        ).stdout
    )["checkpoints"]
    done = prime_train("ckpt", "compress", "small", "--step", "100", "--moments", "bf16", "--json", cwd=tmp_path)
    (found,) = json.loads(done.stdout)["checkpoints"]
    assert found["lossy"] == "moments bf16"
    assert found["saved"] > 0.35
    assert planned["saved"] == pytest.approx(found["saved"], abs=0.05)
    assert "packed, moments in bf16, saves" in prime_train("ckpt", "list", "small", cwd=tmp_path).stdout
    prime_train("ckpt", "restore", "small", cwd=tmp_path)
    assert "moments were rounded to bf16" in prime_train("ckpt", "list", "small", cwd=tmp_path).stdout
    assert json.loads((folder / layout.MANIFEST).read_text())["files"]["__0_0.distcp"]["lossy"]["moments"] == "bf16"

    refused = prime_train("ckpt", "compress", "small", "--step", "50", "--moments", "bf16", cwd=tmp_path)
    assert refused.returncode == ExitCode.USAGE
    assert "its moments cannot be found" in refused.stderr
    unknown = prime_train("ckpt", "compress", "small", "--moments", "fp8", cwd=tmp_path)
    assert unknown.returncode == ExitCode.USAGE
    assert content(run_dir.checkpoint(50)) == {"__0_0.distcp": WEIGHTS, ".metadata": b""}


@pytest.mark.parametrize("command", ["verify", "compress", "restore"])
def test_a_step_that_is_not_there_is_usage(tmp_path: Path, command: str) -> None:
    write_steps(tmp_path, 50, 100)
    done = prime_train("ckpt", command, "small", "--step", "70", cwd=tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert "use one of these steps: 50, 100" in done.stderr


def test_an_incomplete_step_is_not_packed(tmp_path: Path) -> None:
    run_dir = write_steps(tmp_path, 50)
    (run_dir.checkpoint(50) / layout.MANIFEST).unlink()
    done = prime_train("ckpt", "compress", "small", "--step", "50", cwd=tmp_path)
    assert done.returncode == ExitCode.USAGE
    assert "is not complete: no COMPLETE.json" in done.stderr


def test_a_broken_one_is_reported_and_the_others_are_packed(tmp_path: Path) -> None:
    run_dir = write_steps(tmp_path, 50, 100)
    (run_dir.checkpoint(100) / "__0_0.distcp").write_bytes(WEIGHTS[::-1])
    done = prime_train("ckpt", "compress", "small", cwd=tmp_path)
    assert done.returncode == ExitCode.FINDINGS
    assert "broken: __0_0.distcp does not match its SHA-256" in done.stdout
    assert content(run_dir.checkpoint(100)) == {"__0_0.distcp": WEIGHTS[::-1], ".metadata": b""}
    assert "__0_0.distcp.planes.0" in content(run_dir.checkpoint(50))


def test_prune_shows_its_plan_and_then_does_it(tmp_path: Path) -> None:
    run_dir = write_steps(tmp_path, 10, 20, 25, 30, 40, checkpoint=spec.Checkpoint(keep_last=2, keep_every_steps=25))
    (run_dir.checkpoint(10) / layout.PIN).touch()
    run_dir.checkpoint(45).mkdir()  # a save that was killed
    planned = prime_train("ckpt", "prune", "small", "--dry-run", cwd=tmp_path)
    assert [tuple(line.split()[i] for i in (0, 3)) for line in planned.stdout.splitlines()[1:]] == [
        ("45", "delete"),
        ("40", "keep"),
        ("30", "keep"),
        ("25", "keep"),
        ("20", "delete"),
        ("10", "keep"),
    ]
    assert "pinned" in planned.stdout.splitlines()[-1]
    assert steps_of(run_dir) == [45, 40, 30, 25, 20, 10]

    done = json.loads(prime_train("ckpt", "prune", "small", "--json", cwd=tmp_path).stdout)
    assert [row["step"] for row in done["deleted"]] == [20, 45]
    assert steps_of(run_dir) == [40, 30, 25, 10]
    told = [record.event for record in read(run_dir.events) if isinstance(record.event, CheckpointDeleted)]
    assert [event.step for event in told] == [20, 45]


def test_a_pin_keeps_a_checkpoint_until_it_is_taken_away(tmp_path: Path) -> None:
    run_dir = write_steps(tmp_path, 10, 20, 30, checkpoint=spec.Checkpoint(keep_last=1))
    done = prime_train("ckpt", "pin", "small", "10", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "step 10 is pinned: no deletion takes it\n")
    assert "already" in prime_train("ckpt", "pin", "small", "10", cwd=tmp_path).stdout
    assert "pinned" in prime_train("ckpt", "list", "small", cwd=tmp_path).stdout.splitlines()[-1]
    prime_train("ckpt", "prune", "small", cwd=tmp_path)
    assert steps_of(run_dir) == [30, 10]
    assert prime_train("ckpt", "pin", "small", "10", "--unpin", cwd=tmp_path).returncode == 0
    assert "is not pinned" in prime_train("ckpt", "pin", "small", "10", "--unpin", cwd=tmp_path).stdout
    prime_train("ckpt", "prune", "small", cwd=tmp_path)
    assert steps_of(run_dir) == [30]


def test_a_pin_that_cannot_be_has_a_message_of_four_parts(tmp_path: Path) -> None:
    run_dir = write_steps(tmp_path, 10, 20)
    (tmp_path / "elsewhere").mkdir()
    (run_dir.checkpoint(10) / layout.PIN).symlink_to(tmp_path / "elsewhere" / "made")
    prime_train("ckpt", "pin", "small", "10", cwd=tmp_path)
    assert list((tmp_path / "elsewhere").iterdir()) == [], "a link is not followed"
    os.truncate(run_dir.checkpoint(20) / "__0_0.distcp", 7)
    assert "only a complete checkpoint" in prime_train("ckpt", "pin", "small", "20", cwd=tmp_path).stderr
    refused = prime_train("ckpt", "pin", "small", "30", cwd=tmp_path).stderr
    assert "no checkpoint of step 30" in refused
    assert "--step" not in refused, "the step is an argument"


def test_prune_never_takes_the_newest_complete_one(tmp_path: Path) -> None:
    run_dir = write_steps(tmp_path, 10, 20, 30)
    os.truncate(run_dir.checkpoint(30) / "__0_0.distcp", 7)
    prime_train("ckpt", "prune", "small", "--keep-last", "1", cwd=tmp_path)
    assert steps_of(run_dir) == [30, 20]
    refused = prime_train("ckpt", "prune", "small", "--keep-last", "0", cwd=tmp_path)
    assert refused.returncode == ExitCode.USAGE


def test_a_run_that_lives_is_left_alone(tmp_path: Path) -> None:
    with supervised(tmp_path, "live") as (_, process):
        for command in ("prune", "compress", "restore"):
            done = prime_train("ckpt", command, "live", cwd=tmp_path)
            assert done.returncode == ExitCode.USAGE
            assert f"the run is held by process {process.pid}" in done.stderr
            assert "`prime-train stop live`" in done.stderr
