"""`init --task audio`: a folder of clips, an Arrow file or parquet gives a config that validates, with its columns."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prime_train.trainer.audio.chirps import write_clips
from tests.unit.cli.commands import prime_train

ROWS, RATE = 36, 16_000
# As `datasets` declares them: the first integers are no labels.
DECLARED = {"sound": {"_type": "Audio"}, "low_freq": {"_type": "Value"}, "bird": {"_type": "ClassLabel"}}


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The columns audio and label."""
    path = write_clips(tmp_path_factory.mktemp("clips"), ROWS, 2.2, rates=(RATE,))
    return pa.ipc.open_stream(path.read_bytes()).read_all()


def _write_arrow(path: Path, table: Any) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def _write_folder(folder: Path, table: Any, labels: str) -> None:
    folder.mkdir()
    for row, clip in enumerate(table["audio"].to_pylist()):
        (folder / f"{row}.ogg").write_bytes(clip["bytes"])
    if labels:
        lines = [f"{row}.ogg,{label}" for row, label in enumerate(table["label"].to_pylist())]
        (folder / "labels.csv").write_text("\n".join([f"path,{labels}", *lines]) + "\n")


def _write(form: str, folder: Path, table: Any) -> str:
    match form:
        case "arrow":
            _write_arrow(folder / "train.arrow", table)
            return "train.arrow"
        case "parquet":
            columns = {"low_freq": pa.array(range(ROWS)), "sound": table["audio"], "bird": table["label"]}
            described = {b"huggingface": json.dumps({"info": {"features": DECLARED}}).encode()}
            (folder / "data").mkdir()
            pq.write_table(pa.table(columns).replace_schema_metadata(described), folder / "data" / "train.parquet")
            return "data"
        case "several labels":
            lists = pa.array([[label, 12] for label in table["label"].to_pylist()], type=pa.list_(pa.int64()))
            _write_arrow(folder / "many.arrow", pa.table({"audio": table["audio"], "ebird_codes": lists}))
            return "many.arrow"
        case _:
            _write_folder(folder / "clips", table, "species" if form == "folder" else "")
            return "clips"


FORMS: dict[str, dict[str, Any]] = {
    "arrow": {"objective": "supervised"},
    "parquet": {"objective": "supervised", "audio_field": "sound", "label_field": "bird"},
    "several labels": {"objective": "supervised", "multi_label": True, "label_field": "ebird_codes"},
    "folder": {"objective": "supervised", "label_field": "species"},
    "folder without labels": {"objective": "masked_autoencoder", "label_field": ""},
}


@pytest.mark.parametrize("form", FORMS)
def test_clips_of_each_form_give_a_config_that_validates(form: str, clips: Any, tmp_path: Path) -> None:
    data = _write(form, tmp_path, clips)
    cache = {"PRIME_TRAIN_CACHE": str(tmp_path / "cache")}
    done = prime_train("init", "--task", "audio", "--data", data, "--offline", "--json", cwd=tmp_path, **cache)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    text = (tmp_path / "run.toml").read_text()
    assert document["text"] == text
    assert f"data: {ROWS} clips" in document["notes"][0]
    run = tomllib.loads(text)
    crop = {"clip_s": 2.0, "frames": 208, "sample_rate": RATE, "mels": 64}
    assert run["audio"] == FORMS[form] | crop
    assert run["data"]["sources"] == [{"kind": "audio", "path": data}]
    judged = prime_train("validate", "run.toml", "--offline", "--json", cwd=tmp_path)
    assert judged.returncode == 0, judged.stdout
    assert json.loads(judged.stdout)["summary"]["errors"] == 0


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (("--data", "gone"), ("gone", "it does not exist", "give a file or a folder")),
        (("--data", "text"), ("there is no clip", "give the folder")),
        (("--data", "broken.arrow"), ("no clip can be read", "data audio scan")),
        (("--data", "cut.arrow"), ("no whole Arrow file", "copy or download it again")),
        (
            ("--data", "text", "--model", "Qwen/Qwen3-4B"),
            ("--model decides nothing of a run on audio", "[audio.encoder]"),
        ),
        (("--data", "text", "--trainer", "prime-rl"), ("--trainer prime-rl decides nothing", "leave --trainer")),
        (("--data", "text", "--gpus", "1xh1000"), ("h1000",)),
        ((), ("missing: --data",)),
    ],
)
def test_what_cannot_be_used_is_refused_in_four_parts(
    flags: tuple[str, ...], parts: tuple[str, ...], clips: Any, tmp_path: Path
) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("words")
    broken = pa.array([{"bytes": b"x", "path": None}] * 4, type=clips.schema.field("audio").type)
    _write_arrow(tmp_path / "broken.arrow", pa.table({"audio": broken, "label": pa.array([0, 1, 2, 3])}))
    _write_arrow(tmp_path / "cut.arrow", clips)
    (tmp_path / "cut.arrow").write_bytes((tmp_path / "cut.arrow").read_bytes()[:90_000])
    done = prime_train("init", "--task", "audio", *flags, "--offline", "--yes", cwd=tmp_path)
    assert done.returncode in (1, 2, 4), done.stdout
    assert "Traceback" not in done.stderr
    shown = " ".join(done.stderr.split())
    for part in ("error:", " what ", " why ", " fix ", *parts):
        assert part in shown
    assert not (tmp_path / "run.toml").exists()


def test_a_name_on_the_hub_is_drafted_unseen_for_named_gpus(tmp_path: Path) -> None:
    flags = ("--data", "samuelstevens/BirdSet", "--subset", "XCM", "--gpus", "4xh100", "--offline", "--yes")
    done = prime_train("init", "--task", "audio", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = tomllib.loads((tmp_path / "run.toml").read_text())
    assert run["run"]["name"] == "birdset-xcm"
    assert run["data"]["sources"] == [{"kind": "audio", "path": "samuelstevens/BirdSet", "subset": "XCM"}]
    assert run["parallel"] == {"processes": 4}
    assert "its clips are not looked at" in done.stderr
