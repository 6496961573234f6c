"""Batches are the same for every number of workers and ranks, and after a resume; broken clips end no worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from prime_train import audio
from prime_train.core.errors import UserError
from prime_train.trainer.audio import chirps
from prime_train.trainer.audio.batches import AudioBatch, AudioBatches
from prime_train.trainer.audio.clip_files import NO_LABEL
from prime_train.trainer.audio.clips import SEEKS
from prime_train.trainer.audio.workers import AudioWorkers
from tests.unit.trainer.audio.test_clips import low_tones, wav_header

ROWS, SECONDS = 24, 1.5
SETTINGS: dict[str, Any] = {"seed": 3, "clip_s": 1.0, "mel": audio.MelSettings(frames=104)}


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chirps.write_clips(tmp_path_factory.mktemp("clips"), ROWS, SECONDS, rates=(32_000, 44_100))


def hash_of(batch: AudioBatch) -> str:
    parts = (batch.log_mels, batch.labels, batch.rows, batch.frames)
    return sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


def read(path: Path, batches: int, **settings: Any) -> list[AudioBatch]:
    with audio.batches(path, 4, **SETTINGS | settings) as source:
        return [next(source) for _ in range(batches)]


def test_workers_change_nothing(clips: Path) -> None:
    expected = [hash_of(batch) for batch in read(clips, 9, workers=0)]
    assert len(set(expected)) == 9
    for workers, threads in ((1, 1), (2, 3), (4, 2)):
        assert [hash_of(batch) for batch in read(clips, 9, workers=workers, threads=threads)] == expected


def test_either_seek_gives_the_same_batches_for_all_workers_and_after_a_resume(tmp_path: Path) -> None:
    tones = low_tones(6 * 48_000, 48_000).astype(np.float32)  # whose crops in Opus differ after a seek
    clip = chirps.encode(tones, 48_000, "opus")
    table = pa.table({"audio": [clip] * 12, "label": list(range(12))})
    clips = tmp_path / "tones.arrow"
    with pa.OSFile(str(clips), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    found = []
    for seek in SEEKS:
        expected = [hash_of(batch) for batch in read(clips, 6, workers=0, seek=seek)]
        assert [hash_of(batch) for batch in read(clips, 6, workers=4, seek=seek)] == expected
        with audio.batches(clips, 4, workers=1, seek=seek, **SETTINGS) as source:
            source.load_state_dict(source.state_dict() | {"samples": 12})
            assert [hash_of(batch) for batch in take(source, 3)] == expected[3:]
        found.append(expected)
    assert found[0] != found[1]


def test_ranks_share_one_order(clips: Path) -> None:
    together = read(clips, 6, workers=0)
    parts = [read(clips, 3, workers=0, rank=rank, ranks=2) for rank in range(2)]
    found = [hash_of(part[step]) for step in range(3) for part in parts]
    assert found == [hash_of(batch) for batch in together]


@pytest.fixture(scope="module")
def sources(clips: Path) -> list[Path]:
    """Two sources, whose files have the same name."""
    other = clips.parent / "other" / clips.name
    other.parent.mkdir()
    other.write_bytes(chirps.write_clips(clips.parent, 8, 1.2, codec="flac", seed=1).read_bytes())
    return [clips, other]


@pytest.mark.parametrize("probs", [None, (0.5, 0.5)])
def test_several_sources_have_one_order_for_workers_and_ranks_and_after_a_resume(
    sources: list[Path], probs: tuple[float, ...] | None
) -> None:
    def open_with(**settings: Any) -> AudioBatches:
        return audio.batches(sources, 4, **SETTINGS | {"probs": probs} | settings)

    with open_with(workers=0) as source:
        made = list(take(source, 16))
    rows = np.concatenate([batch.rows for batch in made])
    of_first = (rows < ROWS).reshape(2, -1).sum(1).tolist()
    assert of_first == ([ROWS, ROWS] if probs is None else [16, 16])  # in each epoch of 32
    expected = [hash_of(batch) for batch in made]
    with open_with(workers=4) as source:
        assert [hash_of(batch) for batch in take(source, 16)] == expected
    for rank in range(2):
        with open_with(workers=1, rank=rank, ranks=2) as source:
            assert [hash_of(batch) for batch in take(source, 8)] == expected[rank::2]
    with open_with(workers=0) as source:
        list(take(source, 5))
        position = source.state_dict()
    assert position["samples"] == 20
    with open_with(workers=2) as source:
        source.load_state_dict(position)
        assert [hash_of(batch) for batch in take(source, 11)] == expected[5:]


def test_another_mixture_or_order_of_sources_is_refused_at_a_resume(sources: list[Path]) -> None:
    with audio.batches(sources, 4, workers=0, probs=(0.5, 0.5), **SETTINGS) as source:
        position = source.state_dict()
    for given, probs, name in ((sources, (0.4, 0.6), "quotas"), (sources[::-1], (0.5, 0.5), "files")):
        with audio.batches(given, 4, workers=0, probs=probs, **SETTINGS) as source, pytest.raises(UserError) as caught:
            source.load_state_dict(position)
        assert name in caught.value.what


def test_a_mixture_that_cannot_be_read_is_refused(sources: list[Path]) -> None:
    wrong: list[dict[str, Any]] = [{"probs": (1.0,)}, {"probs": (0.5, 0.5), "block_shards": 1}]
    for settings in wrong:
        with pytest.raises(UserError) as caught:
            audio.batches(sources, 4, workers=0, **SETTINGS | settings)
        assert "sampling_probs" in caught.value.where
        assert all((caught.value.what, caught.value.why, caught.value.fix))


def test_an_epoch_has_every_row_once(clips: Path) -> None:
    rows = np.concatenate([batch.rows for batch in read(clips, 2 * ROWS // 4, workers=0)])
    assert sorted(rows[:ROWS]) == sorted(rows[ROWS:]) == list(range(ROWS))
    assert (rows[:ROWS] != rows[ROWS:]).any()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_position_continues_exactly(clips: Path, workers: int) -> None:
    expected = [hash_of(batch) for batch in read(clips, 8, workers=0)]
    with audio.batches(clips, 4, workers=workers, **SETTINGS) as source:
        for _ in range(5):
            next(source)
        position = source.state_dict()
    assert position["samples"] == 20
    with audio.batches(clips, 4, workers=workers, **SETTINGS) as source:
        next(source)  # what the workers made ahead is not used
        source.load_state_dict(position)
        assert [hash_of(next(source)) for _ in range(3)] == expected[5:]


OTHERS = [("seed", 4), ("rows", 23), ("version", 9), ("samples", -1), ("files", "other"), ("blocks", [0, 8, 24])]


@pytest.mark.parametrize(("name", "value"), OTHERS)
def test_a_position_of_another_order_is_refused(clips: Path, name: str, value: Any) -> None:
    with audio.batches(clips, 4, workers=0, **SETTINGS) as source, pytest.raises(UserError) as caught:
        source.load_state_dict(source.state_dict() | {name: value})
    assert name in caught.value.what


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"workers": -1},
        {"threads": 0},
        {"ranks": 0},
        {"rank": 1},
        {"rank": -1},
        {"on_broken": "Skip"},
        {"seek": "slow"},
    ],
)
def test_settings_that_make_no_batch_are_refused(clips: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        audio.batches(clips, **{"batch": 4} | wrong)
    assert caught.value.where == next(iter(wrong))


def test_a_folder_with_splits_is_read_as_one_of_them(clips: Path, tmp_path: Path) -> None:
    for name in ("train-00000-of-00001.arrow", "test-00000-of-00001.arrow"):
        (tmp_path / name).write_bytes(clips.read_bytes())
    counts = {path: audio.batches(path, 1, workers=0).rows for path in (clips, tmp_path, tmp_path / "*.arrow")}
    assert counts == {clips: 24, tmp_path: 24, tmp_path / "*.arrow": 48}
    with pytest.raises(UserError, match="no split dev"):
        audio.batches(tmp_path, 1, split="dev")


def test_files_that_change_before_the_workers_start_are_refused(clips: Path, tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(clips.read_bytes())
    source = audio.batches(tmp_path, 4, workers=0, **SETTINGS)
    (tmp_path / "b.arrow").write_bytes(clips.read_bytes())
    workers = AudioWorkers(source._maker, [tmp_path], 4, 1, 1, 1)
    try:
        workers.ask(0, 0, 4)
        with pytest.raises(UserError, match="the files of the clips have changed"):
            workers.take(0)
    finally:
        workers.close()


def test_a_worker_that_is_killed_is_named(clips: Path) -> None:
    before = {child.pid for child in psutil.Process().children()}
    with audio.batches(clips, 4, workers=2, **SETTINGS) as source:
        next(source)
        worker = next(child.pid for child in psutil.Process().children() if child.pid not in before)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(UserError, match=f"audio worker {worker} was ended by signal 9"):
            list(take(source, 10))
    assert {child.pid for child in psutil.Process().children()} <= before


def test_workers_end_with_their_owner(clips: Path) -> None:
    program = (
        "import os, psutil, signal, sys\nfrom prime_train import audio\n"
        f"source = audio.batches({str(clips)!r}, 4, workers=2, clip_s=1.0)\nnext(source)\n"
        "print(*(child.pid for child in psutil.Process().children()), flush=True)\n"
        "assert 'torch' not in sys.modules\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    for pid in pids:
        try:
            psutil.Process(pid).wait(20)
        except psutil.NoSuchProcess:
            continue


GOOD = chirps.encode(chirps.make_clip(1, SECONDS, 32_000, np.random.default_rng(0)), 32_000, "flac")
BROKEN: list[tuple[bytes | None] | None] = [
    None,
    (b"",),
    (b"OggS",),
    (b"text",),
    (wav_header(0, 1),),
    (wav_header(32_000, 1).replace(b"fmt ", b"xmt "),),  # no rate
    (wav_header(32_000, 1).replace(b"\x01\x00\x01\x00", b"\x99\x99\x01\x00"),),  # an unknown codec
    (GOOD[:100],),
    (wav_header(32_000, 1),),  # shorter than one window
]


def write_broken(folder: Path, broken: int) -> Path:
    """Rows of which the first `broken` are no clips, as BROKEN has them."""
    rows = [
        row and {"bytes": row[0], "path": None} for row in (*(BROKEN * ROWS)[:broken], *[(GOOD,)] * (ROWS - broken))
    ]
    schema = pa.schema([("audio", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())])
    path = folder / "broken.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        batch = [pa.array(rows, type=schema.field("audio").type), pa.array([7] * ROWS)]
        writer.write_batch(pa.record_batch(batch, schema=schema))
    return path


def take(source: AudioBatches, batches: int) -> Iterator[AudioBatch]:
    return (next(source) for _ in range(batches))


def test_broken_clips_are_counted_and_replaced(tmp_path: Path) -> None:
    path, broken = write_broken(tmp_path, len(BROKEN)), len(BROKEN)
    before = {child.pid for child in psutil.Process().children()}
    with audio.batches(path, 4, workers=2, most_broken=1.0, **SETTINGS) as source:
        rows = np.concatenate([batch.rows for batch in take(source, 12)])
        found = {one.row: one.why for one in source.broken}
        alive = [child for child in psutil.Process().children() if child.pid not in before]
        assert [child.status() != psutil.STATUS_ZOMBIE for child in alive] == [True, True]
    assert sorted(found) == list(range(broken))
    assert found[0] == "its audio is null"
    assert found[1] == "it has no bytes"
    assert rows.min() == broken
    again = read(path, 12, workers=0, most_broken=1.0)
    assert np.concatenate([batch.rows for batch in again]).tolist() == rows.tolist()


def test_too_many_broken_clips_end_the_run(tmp_path: Path) -> None:
    path = write_broken(tmp_path, 6)
    with (
        audio.batches(path, 4, workers=0, most_broken=0.02, **SETTINGS) as source,
        pytest.raises(UserError, match=r"samples had a clip that cannot be used: broken\.arrow row \d") as caught,
    ):
        list(take(source, 100))
    assert "more than 2.0% is too many" in caught.value.why
    with (
        audio.batches(path, 4, workers=0, on_broken="fail", **SETTINGS) as source,
        pytest.raises(UserError, match=r"\d of \d+ samples"),
    ):
        list(take(source, 100))


def test_a_set_without_any_whole_clip_is_refused(tmp_path: Path) -> None:
    path = write_broken(tmp_path, ROWS)
    for workers in (0, 1):
        with (
            audio.batches(path, 4, workers=workers, **SETTINGS) as source,
            pytest.raises(UserError, match="16 clips in a row cannot be used"),
        ):
            next(source)


def test_labels_are_padded(tmp_path: Path) -> None:
    schema = pa.schema([("audio", pa.binary()), ("label", pa.list_(pa.int64()))])
    clip = chirps.encode(chirps.make_clip(1, SECONDS, 32_000, np.random.default_rng(0)), 32_000, "flac")
    path = tmp_path / "many.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        labels = pa.array([[1], [2, 5], [], None], type=pa.list_(pa.int64()))
        writer.write_batch(pa.record_batch([pa.array([clip] * 4), labels], schema=schema))
    [batch] = read(path, 1, workers=0)
    by_row = dict(zip(batch.rows.tolist(), batch.labels.tolist(), strict=True))
    assert by_row == {0: [1, NO_LABEL], 1: [2, 5], 2: [NO_LABEL, NO_LABEL], 3: [NO_LABEL, NO_LABEL]}
