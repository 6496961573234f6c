"""Tables of clips: every form gives the same rows, and a damaged or foreign one is an error with four parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prime_train.core.errors import UserError
from prime_train.trainer.audio import chirps
from prime_train.trainer.audio.clip_files import Columns
from prime_train.trainer.audio.clips import ClipError, read_crop
from prime_train.trainer.audio.order import ClipOrder
from prime_train.trainer.audio.tables import ClipTable, open_clips

AUDIO = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
CLIPS = [f"clip {number}".encode() for number in range(5)]
ROWS = [{"bytes": clip, "path": None} for clip in CLIPS]


def write(path: Path, labels: pa.Array, audio: pa.Array | None = None, *, footer: bool = False) -> Path:
    audio = pa.array(ROWS, type=AUDIO) if audio is None else audio
    table = pa.table({"other": pa.array(range(len(audio))), "label": labels, "audio": audio})
    with pa.OSFile(str(path), "wb") as file:
        new = pa.ipc.new_file if footer else pa.ipc.new_stream
        with new(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    return path


def content(table: ClipTable) -> list[tuple[bytes, tuple[int, ...]]]:
    return [(bytes(table.read_clip(row)), table.read_labels(row)) for row in range(table.rows)]


NUMBERS = pa.array([3, 1, None, 0, 2])
EXPECTED = list(zip(CLIPS, [(3,), (1,), (), (0,), (2,)], strict=True))


@pytest.mark.parametrize("form", ["stream", "file", "parquet", "plain bytes", "folder of clips"])
def test_every_form_gives_the_same_rows(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "data"
    source.mkdir()
    match form:
        case "parquet":
            pq.write_table(pa.table({"audio": pa.array(ROWS, type=AUDIO), "label": NUMBERS}), source / "a.parquet")
        case "plain bytes":
            write(source / "a.arrow", NUMBERS, pa.array(CLIPS))
        case "folder of clips":
            for number, clip in enumerate(CLIPS):
                (source / f"{number}.wav").write_bytes(clip)
            (source / "labels.csv").write_text("path,label\n0.wav,3\n1.wav,1\n2.wav,\n3.wav,0\n4.wav,2\n")
        case _:
            write(source / "a.arrow", NUMBERS, footer=form == "file")
    table = open_clips(source, Columns())
    assert content(table) == EXPECTED
    assert table.count_labels().tolist() == [1, 1, 1, 1]
    assert content(open_clips(source, Columns())) == EXPECTED


def test_files_follow_each_other(tmp_path: Path) -> None:
    write(tmp_path / "b.arrow", NUMBERS)
    write(tmp_path / "a.arrow", pa.array([9, 9, 9, 9, 9]))
    table = open_clips(tmp_path, Columns())
    assert table.starts == (0, 5, 10)
    assert [table.read_labels(row) for row in (4, 5, 9)] == [(9,), (3,), (2,)]
    assert table.describe(6) == "b.arrow row 1"


def test_a_clip_may_have_several_labels(tmp_path: Path) -> None:
    labels = pa.array([[1, 2], [], None, [0], [5, 1, 4]], type=pa.list_(pa.int64()))
    table = open_clips(write(tmp_path / "a.arrow", labels), Columns())
    assert [table.read_labels(row) for row in range(5)] == [(1, 2), (), (), (0,), (5, 1, 4)]


def test_a_null_among_labels_counts_as_none(tmp_path: Path) -> None:
    labels = pa.array([[1, None], [None], [2], [], None], type=pa.list_(pa.int64()))
    table = open_clips(write(tmp_path / "a.arrow", labels), Columns())
    assert [table.read_labels(row) for row in range(5)] == [(1,), (), (2,), (), ()]


def test_links_to_files_are_read_as_in_a_snapshot_of_the_hub(tmp_path: Path) -> None:
    blob = write(tmp_path / "blob", NUMBERS)
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "a.arrow").symlink_to(blob)
    (tmp_path / "snapshot" / "README.md").write_text("clips")
    assert content(open_clips(tmp_path / "snapshot", Columns())) == EXPECTED


def test_a_compressed_file_is_refused(tmp_path: Path) -> None:
    clip = np.random.default_rng(0).bytes(3 * 2**20)
    table = pa.table({"audio": pa.array([clip, clip, clip]), "label": pa.array([0, 1, 2])})
    for compression in ("zstd", None):
        path = tmp_path / f"{compression}.arrow"
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema, options=options) as writer:
            writer.write_table(table)
    assert open_clips(tmp_path / "None.arrow", Columns()).rows == 3
    with pytest.raises(UserError, match="its record batches are compressed"):
        open_clips(tmp_path / "zstd.arrow", Columns())


def test_null_audio_is_an_error_of_its_row(tmp_path: Path) -> None:
    audio = pa.array([ROWS[0], None, {"bytes": None, "path": "/etc/passwd"}], type=AUDIO)
    table = open_clips(write(tmp_path / "a.arrow", pa.array([0, 1, 2]), audio), Columns())
    assert bytes(table.read_clip(0)) == CLIPS[0]
    for row in (1, 2):  # a path is never followed
        with pytest.raises(ClipError, match="null"):
            table.read_clip(row)


@pytest.mark.parametrize(
    ("labels", "what", "fix"),
    [
        (pa.array(list("abcde")), "its column label is string, not int64", 'class_encode_column("label")'),
        (pa.array([0.5] * 5), "its column label is double", "class_encode_column"),
        (pa.array([["a"]] * 5), "its column label is list", "class_encode_column"),
    ],
)
def test_labels_that_are_no_numbers_are_refused(labels: pa.Array, what: str, fix: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        open_clips(write(tmp_path / "a.arrow", labels), Columns())
    assert what in caught.value.what
    assert fix in caught.value.fix


@pytest.mark.parametrize("label", [-1, 2**40, 2**16])
def test_a_label_beyond_every_model_is_refused(label: int, tmp_path: Path) -> None:
    table = open_clips(write(tmp_path / "a.arrow", pa.array([0, 1, label, 1, 0])), Columns())
    with pytest.raises(UserError, match=f"a.arrow row 2 has the label {label}"):
        table.count_labels()


def test_counts_are_those_of_the_rows(tmp_path: Path) -> None:
    many = pa.array([[1, 2], [], None, [0, None], [5, 1, 4]], type=pa.list_(pa.int64()))
    kinds = [many, many.cast(pa.large_list(pa.int32())), NUMBERS.cast(pa.uint8()), pa.nulls(5)]
    for number, labels in enumerate(kinds):
        table = open_clips(write(tmp_path / f"{number}.arrow", labels), Columns())
        every = [label for row in range(5) for label in table.read_labels(row)]
        assert table.count_labels().tolist() == np.bincount(every).tolist()


def test_a_million_rows_are_numbered_held_out_and_counted(tmp_path: Path) -> None:
    batch_rows, batches = 10_000, 100
    clips = pa.StructArray.from_arrays(
        [pa.array([b"x"] * batch_rows), pa.nulls(batch_rows, pa.string())], [field.name for field in AUDIO]
    )
    path = tmp_path / "million.arrow"
    labels = pa.array(np.arange(batch_rows) % 400)
    batch = pa.record_batch({"audio": clips, "label": labels})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    table = open_clips(path, Columns())
    assert table.rows == 10**6
    assert table.count_labels().tolist() == [2500] * 400
    assert table.read_labels(999_999) == (399,)
    kept, held = table.hold_out(0.02)
    assert (kept.rows, held.rows) == (980_000, 20_000)
    rows = ClipOrder(kept.rows, 1).find_rows(np.arange(kept.rows))
    assert (np.bincount(rows) == 1).all()


def test_an_unknown_column_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", NUMBERS)
    with pytest.raises(UserError, match="no column bird") as caught:
        open_clips(path, Columns(label="bird"))
    assert "other, label, audio" in caught.value.why
    with pytest.raises(UserError, match="its column other is int64"):
        open_clips(path, Columns(audio="other"))
    assert content(open_clips(path, Columns(label=None))) == [(clip, ()) for clip in CLIPS]


@pytest.mark.parametrize("part", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("footer", [False, True])
def test_a_file_that_is_cut_is_refused(part: float, footer: bool, tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", NUMBERS, footer=footer)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    with pytest.raises(UserError) as caught:
        open_clips(path, Columns())
    assert str(path) in caught.value.where


def test_offsets_beyond_the_file_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", NUMBERS)
    content = bytearray(path.read_bytes())
    at = content.index(np.array([0, 6, 12], dtype=np.int32).tobytes())
    content[at : at + 12] = np.array([0, 2**30, 2**31 - 1], dtype=np.int32).tobytes()
    path.write_bytes(content)
    with pytest.raises(UserError, match="no whole Arrow file"):
        open_clips(path, Columns())


def test_a_folder_without_clips_and_one_without_labels_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UserError):
            open_clips(path, Columns())
    (tmp_path / "a.wav").write_bytes(b"x")
    with pytest.raises(UserError, match="cannot be read") as caught:
        open_clips(tmp_path, Columns())
    assert "labels.csv" in caught.value.where
    (tmp_path / "labels.csv").write_text("path,label\nb.wav,1\n")
    with pytest.raises(UserError, match=r"no row for 1 of 1 clips, the first is a\.wav"):
        open_clips(tmp_path, Columns())
    (tmp_path / "labels.csv").write_text("path,label\na.wav,1\na.wav,2\n")
    with pytest.raises(UserError, match=r"its line 3 has other labels for a\.wav"):
        open_clips(tmp_path, Columns())
    (tmp_path / "labels.csv").write_text("path,label\na.wav,robin\n")
    with pytest.raises(UserError, match="its line 2 has the label 'robin'"):
        open_clips(tmp_path, Columns())


def test_made_clips_are_the_same_each_time(tmp_path: Path) -> None:
    paths = [chirps.write_clips(tmp_path / name, 4, seconds=0.5) for name in "ab"]
    first, second = (open_clips(path, Columns()) for path in paths)
    assert [first.read_labels(row) for row in range(4)] == [(0,), (1,), (2,), (3,)]
    for row in range(4):  # an Ogg file has a random serial number, so its bytes differ
        crops = [read_crop(table.read_clip(row), 32_000, 8000, 0.5) for table in (first, second)]
        assert (crops[0] == crops[1]).all()
    written_ns = paths[0].stat().st_mtime_ns
    assert chirps.write_clips(tmp_path / "a", 4, seconds=0.5).stat().st_mtime_ns == written_ns
