"""`prime-train data audio scan`: says what clips are, names broken ones, and refuses what is no set of clips."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from prime_train.trainer.audio import chirps
from tests.unit.cli.commands import prime_train

SCHEMA = pa.schema([("audio", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())])


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six clips of two codecs and rates and one that is cut, with labels 0 to 2 and one without."""
    path = tmp_path_factory.mktemp("clips") / "train\x1b[31m.arrow"
    draw = np.random.default_rng(0)
    contents = [
        chirps.encode(chirps.make_clip(row, 2.0 + row, rate, draw), rate, codec)
        for row, (rate, codec) in enumerate([(32_000, "vorbis"), (44_100, "flac")] * 3)
    ]
    rows = [{"bytes": content, "path": None} for content in (*contents, contents[1][:60])]
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, SCHEMA) as writer:
        labels = pa.array([0, 1, 1, 1, 0, None, 2], type=pa.int64())
        audio = pa.array(rows, type=SCHEMA.field("audio").type)
        writer.write_batch(pa.record_batch([audio, labels], schema=SCHEMA))
    return path


def test_a_scan_counts_and_names(clips: Path, tmp_path: Path) -> None:
    picture = tmp_path / "ten.png"
    done = prime_train(
        "data", "audio", "scan", str(clips), "--decode", "--json", "--picture", str(picture), cwd=tmp_path
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["rows"] == 7
    assert found["rates_hz"] == {"32000": 3, "44100": 3}
    assert found["codecs"] == {"OGG/VORBIS": 3, "FLAC/PCM_16": 3}
    assert found["seconds"]["0"] == 2.0
    assert found["seconds"]["1"] == 7.0
    assert found["shorter_than_crop"] == 3
    assert (found["labels"], found["without_label"], found["broken"]) == (3, 1, 1)
    assert found["broken_rows"][0]["row"] == 6
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_folder_is_counted_by_its_files_and_its_table(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a.flac", "b.flac"):
        (folder / name).write_bytes(chirps.encode(chirps.make_clip(0, 1.0, 32_000, draw), 32_000, "flac"))
    (folder / "labels.csv").write_text("path,label\na.flac,0\nb.flac,1\ngone.flac,1\n")
    done = prime_train("data", "audio", "scan", str(folder), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 in 2 files" in done.stdout
    assert "1 in labels.csv are not there, the first is gone.flac" in done.stdout


def test_the_text_has_no_control_characters_of_a_name(clips: Path, tmp_path: Path) -> None:
    done = prime_train("data", "audio", "scan", str(clips), cwd=tmp_path)
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert "7 in 1 files" in done.stdout
    assert "row 6: it cannot be opened" in done.stdout


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("absent",), ("absent", "it does not exist", "give a file or a folder")),
        ((".",), ("there is no clip", "give the folder")),
        (("text.arrow",), ("no whole Arrow file", "copy or download it again")),
        (("CLIPS", "--label-field", "bird"), ("it has no column bird", "label_field")),
        (("CLIPS", "--picture", "/proc/none.png"), ("cannot be written", "--picture")),
    ],
)
def test_wrong_use_has_four_parts(words: tuple[str, ...], parts: tuple[str, ...], clips: Path, tmp_path: Path) -> None:
    (tmp_path / "text.arrow").write_text("no arrow")
    words = tuple(str(clips) if word == "CLIPS" else word for word in words)
    if words == (".",):
        (tmp_path / "text.arrow").unlink()
    done = prime_train("data", "audio", "scan", *words, cwd=tmp_path)
    assert done.returncode in (2, 4), done.stdout
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in " ".join(done.stderr.split()), done.stderr
