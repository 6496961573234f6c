import json
import os
from pathlib import Path

import pytest

from prime_train.checkpoints.layout import MANIFEST, Checkpoint
from prime_train.checkpoints.packing_plan import StoredSize
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.views.run import checkpoints
from tests.golden import same_as_golden
from tests.views.written_runs import write_checkpoint

NOW_S = 1_790_000_100.0


def _found(step: int, problem: str = "") -> tuple[Checkpoint, float]:
    return Checkpoint(step, Path(f"/runs/small/checkpoints/step_{step}"), 1000 * step, problem), NOW_S - step


def test_json_of_a_list() -> None:
    found = [_found(40, "model.distcp has 10 of 40 bytes"), _found(30), _found(20), _found(10)]
    same_as_golden("ckpt_list.json", checkpoints.list_json("small", checkpoints.make_rows(found, {30}, NOW_S)))


def test_json_without_any_checkpoint() -> None:
    assert checkpoints.list_json("small", []) == {"version": 1, "run": "small", "resume_step": None, "checkpoints": []}


def test_a_resume_takes_the_newest_complete_one_that_loads() -> None:
    rows = checkpoints.make_rows([_found(40, "broken"), _found(30), _found(20), _found(10)], {30}, NOW_S)
    assert [(row.step, row.resume) for row in rows] == [(40, False), (30, False), (20, True), (10, False)]
    assert checkpoints.list_rows(rows)[1] == ("30", "29.3 KiB", "30 s", "the trainer could not load it")


def test_packed_and_rounded_checkpoints_show_what_they_save() -> None:
    packings = {
        30: checkpoints.Packing(StoredSize(840, 1000), packed=True, lossy=False),
        20: checkpoints.Packing(StoredSize(500, 1000), packed=True, lossy=True),
        10: checkpoints.Packing(StoredSize(1000, 1000), packed=False, lossy=True),
    }
    rows = checkpoints.make_rows([_found(30), _found(20), _found(10)], (), NOW_S, packings)
    assert [remark for *_, remark in checkpoints.list_rows(rows)] == [
        "complete; packed, saves 160 B (16.0%); used by a resume",
        "complete; packed, moments in bf16, saves 500 B (50.0%)",
        "complete; moments were rounded to bf16",
    ]
    packed = [
        (row["packed"], row["lossy"], row["saved_bytes"]) for row in checkpoints.list_json("s", rows)["checkpoints"]
    ]
    assert packed == [(True, None, 160), (True, "moments bf16", 500), (False, "moments bf16", 0)]


def test_the_disk_is_read_newest_first_and_ages_count_from_the_manifest(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    written = write_checkpoint(run_dir, 10) / "COMPLETE.json"
    write_checkpoint(run_dir, 20, complete=False)
    os.utime(written, (NOW_S - 60, NOW_S - 60))
    rows = checkpoints.gather(run_dir, (), NOW_S)
    assert [(row.step, bool(row.problem), row.resume) for row in rows] == [(20, True, False), (10, False, True)]
    assert rows[1].age_s == 60


def test_verify_reads_every_byte_and_distinguishes_broken_from_unfinished(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for step in (10, 20):
        write_checkpoint(run_dir, step)
    write_checkpoint(run_dir, 30, complete=False)
    damaged = run_dir.checkpoint(20) / "model.distcp"
    damaged.write_bytes(b"\x01" + damaged.read_bytes()[1:])
    read: list[int] = []
    found = list(checkpoints.verify(run_dir, read.append))
    assert [(one.step, one.state) for one in found] == [(30, "unfinished"), (20, "broken"), (10, "verified")]
    assert found[1].problem == "model.distcp does not match its SHA-256"
    assert sum(read) == 1000 + 10 + 1000 + 20
    assert checkpoints.verify_json("small", found)["ok"] is False
    assert checkpoints.verify_json("small", found[2:])["ok"] is True


def test_a_manifest_that_names_a_file_elsewhere_is_broken_in_every_command(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    good, bad = write_checkpoint(run_dir, 10), write_checkpoint(run_dir, 20)
    (tmp_path / "secret").write_bytes(bytes(1000))
    manifest = json.loads((bad / MANIFEST).read_text())
    manifest["files"]["../../secret"] = manifest["files"].pop("model.distcp")
    (bad / MANIFEST).write_text(json.dumps(manifest))

    listed = checkpoints.gather(run_dir, (), NOW_S)

    assert [(row.step, row.resume) for row in listed] == [(20, False), (10, True)]
    assert "it names the file '../../secret': it leads out of the folder" in listed[0].problem
    assert [found.path for found in checkpoints.complete(run_dir, None)] == [good]
    assert [found.state for found in checkpoints.verify(run_dir, lambda _: None)] == ["broken", "verified"]
    with pytest.raises(UserError, match="it leads out of the folder"):  # ckpt restore, ckpt compress
        checkpoints.complete(run_dir, 20)
