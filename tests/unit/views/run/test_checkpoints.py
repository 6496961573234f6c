import json
import os
from pathlib import Path

import pytest

from prime_train.checkpoints.layout import MANIFEST, SavedCheckpoint
from prime_train.checkpoints.packing.packed import ManifestEntry, PackedSegment
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.views.run import checkpoints
from tests.golden import same_as_golden
from tests.unit.views.written_runs import write_checkpoint

NOW_S = 1_790_000_100.0


def _found(step: int, problem: str = "", entries: tuple[ManifestEntry, ...] = ()) -> SavedCheckpoint:
    path = Path(f"/runs/small/checkpoints/step_{step}")
    return SavedCheckpoint(step, str(path), 1000 * step, problem, written_s=NOW_S - step, entries=entries)


def _entry(kept_bytes: int, *, packed: bool, lossy: bool) -> ManifestEntry:
    """A file of 1000 bytes, whose tail is packed into nothing."""
    segments = (PackedSegment("tail", kept_bytes, 0, ""),) if packed else ()
    return ManifestEntry("a", 1000, "", kept_bytes, segments, "as saved" if lossy else "")


def test_json_of_a_list() -> None:
    found = [_found(40, "model.distcp has 10 of 40 bytes"), _found(30), _found(20), _found(10)]
    same_as_golden("ckpt_list.json", checkpoints.list_json("small", found, {30}, NOW_S))


def test_json_without_any_checkpoint() -> None:
    document = {"version": 1, "run": "small", "resume_step": None, "checkpoints": []}
    assert checkpoints.list_json("small", [], (), NOW_S) == document


def test_a_resume_takes_the_newest_complete_one_that_loads() -> None:
    found = [_found(40, "broken"), _found(30), _found(20), _found(10)]
    document = checkpoints.list_json("small", found, {30}, NOW_S)
    assert [(one["step"], one["resume"]) for one in document["checkpoints"]] == [
        (40, False),
        (30, False),
        (20, True),
        (10, False),
    ]
    assert checkpoints.list_rows(found, {30}, NOW_S)[1] == ("30", "29.3 KiB", "30 s", "the trainer could not load it")


def test_packed_and_rounded_checkpoints_show_what_they_save() -> None:
    found = [
        _found(30, entries=(_entry(840, packed=True, lossy=False),)),
        _found(20, entries=(_entry(500, packed=True, lossy=True),)),
        _found(10, entries=(_entry(1000, packed=False, lossy=True),)),
    ]
    document = checkpoints.list_json("small", found, (), NOW_S)
    assert [remark for *_, remark in checkpoints.list_rows(found, (), NOW_S)] == [
        "complete; packed, saves 160 B (16.0%); used by a resume",
        "complete; packed, moments in bf16, saves 500 B (50.0%)",
        "complete; moments were rounded to bf16",
    ]
    packed = [(one["packed"], one["lossy"], one["saved_bytes"]) for one in document["checkpoints"]]
    assert packed == [(True, None, 160), (True, "moments bf16", 500), (False, "moments bf16", 0)]


def test_the_disk_is_read_newest_first_and_ages_count_from_the_manifest(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    written = write_checkpoint(run_dir, 10) / "COMPLETE.json"
    write_checkpoint(run_dir, 20, complete=False)
    os.utime(written, (NOW_S - 60, NOW_S - 60))
    listed = checkpoints.list_json("small", checkpoints.saved(run_dir), (), NOW_S)["checkpoints"]
    assert [(one["step"], one["complete"], one["resume"]) for one in listed] == [(20, False, False), (10, True, True)]
    assert listed[1]["age_s"] == 60


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

    listed = checkpoints.list_json("small", checkpoints.saved(run_dir), (), NOW_S)["checkpoints"]

    assert [(one["step"], one["resume"]) for one in listed] == [(20, False), (10, True)]
    assert "it names the file '../../secret': it leads out of the folder" in listed[0]["problem"]
    assert [found.path for found in checkpoints.complete(run_dir, None)] == [good]
    assert [found.state for found in checkpoints.verify(run_dir, lambda _: None)] == ["broken", "verified"]
    with pytest.raises(UserError, match="it leads out of the folder"):  # ckpt restore, ckpt compress
        checkpoints.complete(run_dir, 20)
