"""Hostile and odd files are judged within bounds, and one that cannot be read never counts as broken."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from prime_train.checkpoints import folder_layout, step_folders
from prime_train.checkpoints.aside import make_way
from prime_train.checkpoints.layout import SavedCheckpoint
from prime_train.checkpoints.layout_table import read_layout
from prime_train.checkpoints.step_folders import StepPlaces
from tests.unit.checkpoints import written_saves as saves
from tests.unit.checkpoints.test_layouts import find_layout
from tests.unit.checkpoints.written_saves import SAVES, STEP

FOLDER = f"checkpoint-{STEP}"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A whole checkpoint of the Hugging Face Trainer."""
    saves.write_whole(tmp_path, SAVES["hf"](STEP))
    return tmp_path


def judge(out: Path, layout: str = "hf", ranks: int = 1) -> Mapping[str, str]:
    found = step_folders.checkpoints([out], find_layout(layout, ranks))
    return {one.path.name: one.problem for one in found}


def test_a_header_that_claims_any_length_is_not_read(out: Path) -> None:
    for claimed in (2**63, 2**40, 2**26 + 1, 10**6):
        (out / FOLDER / "model.safetensors").write_bytes(claimed.to_bytes(8, "little") + b"{}")
        assert "its header should have" in judge(out)[FOLDER]


@pytest.mark.parametrize(
    "header",
    [b"[1]", b"{", b'{"a": {}}', b'{"a": {"data_offsets": [0, -1]}}', b'{"a": {"data_offsets": [0, 1e99]}}', b"\xff"],
)
def test_a_header_of_another_form_is_no_header(out: Path, header: bytes) -> None:
    (out / FOLDER / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert "its header is not that of safetensors" in judge(out)[FOLDER]


def test_what_is_no_plain_file_is_named_and_not_opened(out: Path) -> None:
    optimizer = out / FOLDER / "optimizer.pt"
    optimizer.unlink()
    os.mkfifo(optimizer)
    assert "optimizer.pt is unreadable: it is a named pipe" in judge(out)[FOLDER]
    optimizer.unlink()
    optimizer.symlink_to(out / FOLDER / "scheduler.pt")
    assert "optimizer.pt is unreadable: it is a symbolic link" in judge(out)[FOLDER]
    # Nothing is known of what it leads to, so it does not count as broken.
    assert make_way(StepPlaces(out, (out,), find_layout("hf", 1)), "rename") == ()


def test_a_step_folder_that_is_a_link_is_no_checkpoint(out: Path) -> None:
    (out / "checkpoint-30").symlink_to(out / FOLDER)
    assert list(judge(out)) == [FOLDER]


def test_names_with_line_ends_and_numbers_without_end_are_survived(out: Path) -> None:
    (out / f"{FOLDER}\n").mkdir()
    (out / f"checkpoint-{'9' * 200}").mkdir()
    (out / "checkpoint-٣").mkdir()
    (out / FOLDER / "odd\nname\x1b[31m.pt").write_bytes(b"x")
    assert list(judge(out)) == [FOLDER]
    assert judge(out)[FOLDER].isprintable()


def test_a_folder_with_too_many_files_is_one_problem(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_layout, "_MOST_FILES", 5)
    assert judge(out) == {FOLDER: f"{FOLDER} is unreadable: it has more than 5 files"}


def test_the_old_format_of_torch_is_neither_whole_nor_broken(out: Path) -> None:
    (out / FOLDER / "optimizer.pt").write_bytes(pickle.dumps({"state": {}}, protocol=2))
    assert "its end proves nothing" in judge(out)[FOLDER]
    assert make_way(StepPlaces(out, (out,), find_layout("hf", 1)), "rename") == ()


def test_bytes_behind_the_end_of_a_zip_and_a_zip_without_its_middle_are_not_whole(out: Path) -> None:
    path = out / FOLDER / "optimizer.pt"
    content = path.read_bytes()
    for changed in (content + b"more", content[:100] + content[150:], b"\0" * len(content), b""):
        path.write_bytes(changed)
        assert "optimizer.pt is not whole" in judge(out)[FOLDER]
    path.write_bytes(content)
    assert judge(out)[FOLDER] == ""


def test_any_zip_of_python_is_whole(out: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for number in range(300):
            archive.writestr(f"archive/data/{number}", b"x" * number)
        archive.comment = b"a comment"
    (out / FOLDER / "optimizer.pt").write_bytes(content.getvalue())
    assert judge(out)[FOLDER] == ""


def test_a_marker_of_another_step_and_nan_in_it(out: Path) -> None:
    state = out / FOLDER / "trainer_state.json"
    state.write_text('{"global_step": 20, "log_history": [{"loss": NaN}]}')
    assert judge(out)[FOLDER] == ""
    for text in ('{"global_step": 10}', '{"global_step": true}', "{}", "[]", '{"global_step": "20\\n"}'):
        state.write_text(text)
        assert "trainer_state.json" in judge(out)[FOLDER]


def test_the_long_integer_of_a_tokenizer_is_json(out: Path) -> None:
    (out / FOLDER / "tokenizer_config.json").write_text(json.dumps({"model_max_length": int(1e30)}))
    assert judge(out)[FOLDER] == ""


def test_an_index_that_leads_out_of_the_folder_names_nothing_that_is_there(out: Path) -> None:
    index = out / FOLDER / "model.safetensors.index.json"
    faulty: tuple[Any, ...] = ({"a": "../../etc/passwd"}, {"a": 1}, [], {"a": "missing.safetensors"})
    for weights in faulty:
        index.write_text(json.dumps({"weight_map": weights}))
        assert "index.json" in judge(out)[FOLDER]


def test_a_rank_of_the_launch_that_has_no_file_is_named(out: Path) -> None:
    (out / FOLDER / "rng_state.pth").rename(out / FOLDER / "rng_state_0.pth")
    assert judge(out, ranks=1)[FOLDER] == ""
    assert judge(out, ranks=2)[FOLDER] == "no rng_state_1.pth, of 2 ranks: the save did not finish"


def test_ranks_of_an_earlier_start_may_lie_beside(tmp_path: Path) -> None:
    saves.write_whole(tmp_path, SAVES["verl"](STEP))
    for kind in ("model", "optim", "extra_state"):
        (tmp_path / f"global_step_{STEP}/actor/{kind}_world_size_4_rank_3.pt").write_bytes(saves.zipped())
    assert judge(tmp_path, "verl", 2) == {f"global_step_{STEP}": ""}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"proofs": []}, "proofs"),
        ({"proofs": [{"zip": "*.pt", "json": "a"}]}, "proofs"),
        ({"proofs": [{"magic": "*.pt"}]}, "proofs"),
        ({"proofs": [{"ranks": "rng.pth"}]}, "{rank}"),
        ({"proofs": [{"zip": 3}]}, "no name"),
        ({"proofs": [{"zip": "a", "least": -1}]}, "least"),
        ({"step": "step"}, "no group"),
        ({"step": "(("}, "layout.step"),
        ({"kind": "link"}, "kind"),
        ({"colour": "red"}, "colour"),
        ({"tracker": {"file": "latest", "form": "x"}}, "{step}"),
    ],
)
def test_a_faulty_table_is_refused(changed: dict[str, Any], named: str) -> None:
    table = {"name": "x", "step": r"step-(\d+)", "proofs": [{"zip": "*.pt"}]}
    read_layout(table)
    with pytest.raises(ValueError, match=named):
        read_layout(table | changed)


def test_a_whole_checkpoint_is_judged_once_until_an_entry_of_it_changes(out: Path) -> None:
    known: dict[step_folders.SeenPaths, SavedCheckpoint] = {}
    form = find_layout("hf", 1)
    first = step_folders.checkpoints([out], form, known)
    assert [found.complete for found in first] == [True]
    assert step_folders.checkpoints([out], form, known)[0] is first[0]
    (out / FOLDER / "optimizer.pt").rename(out / "optimizer.pt")
    (out / FOLDER / "trainer_state.json").unlink()
    assert [found.complete for found in step_folders.checkpoints([out], form, known)] == [False]
