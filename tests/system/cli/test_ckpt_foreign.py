"""`ckpt compress`, `restore`, `verify` and `list` on checkpoints of another trainer, and a run that begins after."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from prime_train.checkpoints.packing import foreign
from prime_train.core.errors import ExitCode
from tests.system.programs.command.commands import read_json, write_config
from tests.unit.checkpoints.packing.test_foreign import describe
from tests.unit.checkpoints.packing.test_planes import numbers
from tests.unit.cli.commands import prime_train

# It saves as Hugging Face's Trainer does, but for its content: steps 5, 10, 15 ... up to the one that it is given.
_TRAINER = """
import json, struct, sys
from pathlib import Path
weights = Path("weights").read_bytes()
first = int(sys.argv[2].rpartition("-")[2]) if len(sys.argv) > 2 else 0
for step in range(first + 1, int(sys.argv[1]) + 1):
    print(f"step {step} loss 0.5", flush=True)
    if step % 5 == 0:
        folder = Path("out") / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        header = json.dumps({"a": {"dtype": "U8", "shape": [len(weights)], "data_offsets": [0, len(weights)]}}).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + weights)
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
"""


def write_run(folder: Path, layout: str = "hf") -> Path:
    """A run "own" that has ended at step 20; its folder of checkpoints."""
    (folder / "weights").write_bytes(numbers("f", 100_000))
    (folder / "train.py").write_text(_TRAINER)
    config = write_config(
        "own",
        (sys.executable, "train.py", "20"),
        run={"max_steps": 20},
        command_checkpoints={"dir": "out", "layout": layout},
        command_resume={"how": "argument", "template": "{path}"},
    )
    (folder / "run.toml").write_text(config)
    done = prime_train("run", "--no-validate", "run.toml", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def rows(folder: Path, *words: str) -> list[dict[str, Any]]:
    return list(read_json(folder, "ckpt", *words)["checkpoints"])


def test_what_is_packed_comes_back_as_it_was(tmp_path: Path) -> None:
    out = write_run(tmp_path)
    before = describe(out)
    planned = rows(tmp_path, "compress", "own", "--dry-run")
    assert [row["step"] for row in planned] == [10, 5]
    assert describe(out) == before
    packed = rows(tmp_path, "compress", "own")
    assert [(row["step"], row["problem"]) for row in packed] == [(10, None), (5, None)]
    assert all(row["saved"] > 0.1 for row in packed)
    assert all(abs(row["saved"] - plan["saved"]) < 0.02 for row, plan in zip(packed, planned, strict=True))
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint-15", "checkpoint-20", foreign.FOLDER]
    assert rows(tmp_path, "compress", "own") == []
    listed = read_json(tmp_path, "ckpt", "list", "own")
    assert listed["resume_step"] == 20
    assert [(one["step"], one["packed"]) for one in listed["checkpoints"]] == [
        (20, False),
        (15, False),
        (10, True),
        (5, True),
    ]
    assert "ckpt restore" in prime_train("ckpt", "list", "own", cwd=tmp_path).stdout
    verified = {row["step"]: row["state"] for row in rows(tmp_path, "verify", "own")}
    assert verified == {20: "whole", 15: "whole", 10: "verified", 5: "verified"}
    assert [row["step"] for row in rows(tmp_path, "restore", "own", "--step", "10")] == [10]
    assert [row["step"] for row in rows(tmp_path, "restore", "own")] == [5]
    assert describe(out) == before


def test_a_run_does_not_begin_before_a_packed_checkpoint(tmp_path: Path) -> None:
    """The two newest ones are lost: it would begin at step 5 although step 10 is whole."""
    out = write_run(tmp_path)
    assert [row["step"] for row in rows(tmp_path, "compress", "own", "--step", "10")] == [10]
    for step in (15, 20):
        shutil.rmtree(out / f"checkpoint-{step}")
    words = ("run", "--no-validate", "run.toml", "--set", "run.max_steps=22")
    refused = prime_train(*words, cwd=tmp_path)
    assert refused.returncode == 2, refused.stderr
    assert "step 10, is packed" in refused.stderr
    assert "prime-train ckpt restore own --step 10" in refused.stderr
    assert prime_train("ckpt", "restore", "own", cwd=tmp_path).returncode == 0
    again = prime_train(*words, "--set", f'command.argv=["{sys.executable}", "train.py", "22"]', cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "attempt 2 resumes from step 10" in again.stderr


def test_a_restart_does_not_begin_before_a_packed_checkpoint(tmp_path: Path) -> None:
    """An attempt is killed and leaves its two newest checkpoints cut: the next would begin at step 5."""
    out = write_run(tmp_path)
    rows(tmp_path, "compress", "own", "--step", "10")
    (tmp_path / "train.py").write_text("""\
import os, pathlib
for step in (15, 20):
    os.truncate(pathlib.Path("out") / f"checkpoint-{step}" / "model.safetensors", 50)
os.kill(os.getpid(), 9)
""")
    ended = prime_train("run", "--no-validate", "run.toml", "--set", "run.max_steps=22", cwd=tmp_path)
    assert ended.returncode == ExitCode.RUN_FAILED, ended.stderr
    assert "of step 10, is packed" in ended.stderr
    assert "prime-train ckpt restore own --step 10" in ended.stderr
    assert ended.stderr.count("trainer started") == 1
    assert (out / foreign.FOLDER / "step_10").is_dir()


def test_a_return_to_an_earlier_step_sets_newer_packed_ones_aside(tmp_path: Path) -> None:
    out = write_run(tmp_path)
    rows(tmp_path, "compress", "own", "--step", "10")
    packed = out / foreign.FOLDER
    before = describe(packed / "step_10")
    words = ("run", "--no-validate", "run.toml")
    shown = prime_train(*words, "--resume", "5", "--dry-run", cwd=tmp_path)
    assert "kept as step_10.set_aside" in shown.stdout + shown.stderr
    assert (packed / "step_10").is_dir()
    ends = ("--set", "run.max_steps=7", "--set", f'command.argv=["{sys.executable}", "train.py", "7"]')
    back = prime_train(*words, "--resume", "5", *ends, cwd=tmp_path)
    assert "attempt 2 resumes from step 5" in back.stderr
    assert describe(packed / "step_10.set_aside") == before
    again = prime_train(*words, cwd=tmp_path)
    assert "attempt 3 resumes from step 5" in again.stderr, again.stderr


def test_a_damaged_byte_is_found(tmp_path: Path) -> None:
    out = write_run(tmp_path)
    rows(tmp_path, "compress", "own", "--step", "5")
    packed = next(out.rglob("*.planes.0"))
    packed.write_bytes(packed.read_bytes()[:-40] + bytes(40))
    done = prime_train("ckpt", "verify", "own", "--json", cwd=tmp_path)
    assert done.returncode == 1
    assert {row["step"]: row["state"] for row in json.loads(done.stdout)["checkpoints"]}[5] == "broken"
    assert prime_train("ckpt", "restore", "own", cwd=tmp_path).returncode == 1


def test_a_damaged_manifest_stops_no_other_step(tmp_path: Path) -> None:
    out = write_run(tmp_path)
    rows(tmp_path, "compress", "own", "--step", "5")
    (out / foreign.FOLDER / "step_5" / "COMPLETE.json").write_text("{")
    for words, folder in (("compress", foreign.FOLDER + "/step_10"), ("restore", "checkpoint-10")):
        done = prime_train("ckpt", words, "own", "--json", cwd=tmp_path)
        assert done.returncode == 1, done.stderr
        problems = {row["step"]: row["problem"] for row in json.loads(done.stdout)["checkpoints"]}
        assert problems[10] is None
        assert problems[5].startswith("broken: COMPLETE.json")
        assert (out / folder).is_dir()


@pytest.mark.parametrize(
    ("words", "layout", "why"),
    [
        (("--step", "20"), "hf", "the newest 2 complete ones stay"),
        (("--step", "7"), "hf", "no complete checkpoint of this step"),
        (("--moments", "bf16"), "hf", "the moments of AdamW"),
        ((), "accelerate", "deletes the folders with the lowest numbers"),
        ((), "dcp", "nothing shows that its trainer leaves a folder beside its checkpoints alone"),
        ((), "", "its layout is not known"),
    ],
)
def test_a_refusal_has_its_reason(words: tuple[str, ...], layout: str, why: str, tmp_path: Path) -> None:
    out = write_run(tmp_path, layout)
    before = describe(out)
    refused = prime_train("ckpt", "compress", "own", *words, cwd=tmp_path)
    assert refused.returncode == 2
    assert why in " ".join(refused.stderr.split())
    assert describe(out) == before


def test_a_folder_that_another_run_holds_is_left_alone(tmp_path: Path) -> None:
    out = write_run(tmp_path)
    before = describe(out)
    descriptor = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        refused = prime_train("ckpt", "compress", "own", cwd=tmp_path)
    finally:
        os.close(descriptor)
    assert refused.returncode == 2
    assert "another supervised run writes into the same folder" in refused.stderr
    assert describe(out) == before
