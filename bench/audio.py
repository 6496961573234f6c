"""Measures the audio source: CPU time of a sample against pipelines that decode whole clips, stages, processes, memory.

Two sets of generated clips of a minute: Vorbis at 32 kHz, and a mix of Vorbis at 32, 44.1 and 48 kHz with FLAC at 44.1
kHz. The ways are measured in turns, so that the load of the machine is the same for all. torchaudio's pipeline is left
out where torchaudio cannot be imported, and the result says so. Opus and MP3 are read from their begin and by a seek.
A start is measured on many small files, with and without an index of their rows, after the kernel has dropped them.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import record
import soundfile
import soxr

from prime_train import audio
from prime_train.trainer.audio import chirps
from prime_train.trainer.audio.clip_files import Columns
from prime_train.trainer.audio.clips import SEEKS, read_crop
from prime_train.trainer.audio.log_mel import Floats, MelSettings, compute_log_mel, write_sample
from prime_train.trainer.audio.order import ClipOrder
from prime_train.trainer.audio.samples import SampleMaker
from prime_train.trainer.audio.tables import ClipTable, open_clips

MEL = MelSettings()
CROP_S = 5.0
CROP = round(CROP_S * MEL.sample_rate)
VORBIS = (("vorbis", 32_000),)
MIXED = (("vorbis", 32_000), ("vorbis", 44_100), ("vorbis", 48_000), ("flac", 44_100))
STATEFUL = (("opus", 48_000), ("mp3", 44_100))
SHARDS, SHARD_BATCHES = 1000, 10
ONE_THREAD = "OPENBLAS_NUM_THREADS"
AT_LEAST = {"xcl32": 5.5, "mixed": 6.5}


def write_set(folder: Path, kinds: tuple[tuple[str, int], ...], count: int, seconds: float) -> Path:
    """An Arrow file with clips of these codecs and rates in turn."""
    schema = pa.schema([("audio", pa.binary()), ("label", pa.int64())])
    path = folder / f"{len(kinds)}-{kinds[0][0]}.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for row in range(count):
            codec, rate = kinds[row % len(kinds)]
            clip = chirps.make_clip(row % chirps.CLASSES, seconds, rate, np.random.default_rng(row))
            content = pa.array([chirps.encode(clip, rate, codec)], type=pa.binary())
            writer.write_batch(pa.record_batch([content, pa.array([row % 12])], schema=schema))
    return path


def make_whole(table: ClipTable, row: int, where: float, out: Floats) -> None:
    """What a loader does that decodes and resamples the whole clip, and then keeps a crop."""
    signal, rate = soundfile.read(io.BytesIO(table.read_clip(row)), dtype="float32")
    if rate != MEL.sample_rate:
        signal = soxr.resample(signal, rate, MEL.sample_rate, quality="HQ")
    begin = int(where * (len(signal) - CROP))
    write_sample(compute_log_mel(signal[begin : begin + CROP], MEL), MEL, out)


def find_torchaudio() -> Callable[[ClipTable, int, float, Floats], None] | None:
    """torchaudio's own steps: load, resample, kaldi.fbank. None where it cannot be imported."""
    try:
        import torch
        from torchaudio.compliance import kaldi
        from torchaudio.functional import resample
    except (ImportError, OSError):
        return None
    torch.set_num_threads(1)

    def make(table: ClipTable, row: int, where: float, out: Floats) -> None:
        # Its own `load` needs torchcodec, which is another decoder of the whole clip: libsndfile stands for it.
        signal, rate = soundfile.read(io.BytesIO(table.read_clip(row)), dtype="float32")
        waveform = resample(torch.from_numpy(signal)[None], rate, MEL.sample_rate)  # (1, N)
        begin = int(where * (waveform.shape[1] - CROP))
        found = kaldi.fbank(
            waveform[:, begin : begin + CROP],
            sample_frequency=MEL.sample_rate,
            num_mel_bins=MEL.mels,
            window_type="hanning",
            use_energy=False,
        )
        write_sample(found.numpy(), MEL, out)

    return make


def measure_ways(name: str, path: Path, rounds: int) -> Iterator[dict[str, Any]]:
    table = open_clips(path, Columns())
    maker = SampleMaker(table, ClipOrder(table.rows, 0), MEL, CROP_S)
    out = np.zeros((MEL.frames, MEL.mels), dtype=np.float32)
    ways: dict[str, Callable[[int], object]] = {
        "crop": lambda row: maker.make(row, row, out),
        "whole clip": lambda row: make_whole(table, row, maker.order.crop_at(row, row), out),
    }
    if (with_torchaudio := find_torchaudio()) is not None:
        ways["torchaudio"] = lambda row: with_torchaudio(table, row, maker.order.crop_at(row, row), out)
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for way in ways:
        ways[way](0)
    for _ in range(rounds):
        for way, make in ways.items():
            began_s = time.process_time()
            for row in range(table.rows):
                make(row)
            spent[way].append((time.process_time() - began_s) / table.rows)
    for way, samples in spent.items():
        yield record.emit(f"{name}: CPU time of a sample, {way}", samples)
    own = float(np.median(spent["crop"]))
    for way in list(ways)[1:]:
        ratio = [float(np.median(spent[way])) / own]
        least = {"least": AT_LEAST[name]} if way == "whole clip" else {}
        yield record.emit(f"{name}: {way} / crop", ratio, unit="x", **least)
    if with_torchaudio is None:
        print(f"{name}: skipped: torchaudio cannot be imported here")
    yield from measure_stages(name, table, maker)


def measure_stages(name: str, table: ClipTable, maker: SampleMaker) -> Iterator[dict[str, Any]]:
    crops = [read_crop(table.read_clip(row), MEL.sample_rate, CROP, 0.5) for row in range(table.rows)]
    began_s = time.process_time()
    for row in range(table.rows):
        read_crop(table.read_clip(row), MEL.sample_rate, CROP, maker.order.crop_at(row, row))
    read_s = time.process_time() - began_s
    began_s = time.process_time()
    for crop in crops:
        compute_log_mel(crop, MEL)
    for what, stage_s in (("seek, decode, resample", read_s), ("log-mel", time.process_time() - began_s)):
        yield record.emit(f"{name}: {what}", [stage_s / table.rows])


def measure_seeks(folder: Path, clips: int, seconds: float, rounds: int) -> Iterator[dict[str, Any]]:
    """CPU time of a sample that is decoded from the begin of its clip, and after a seek, and how both differ."""
    for kind in STATEFUL:
        table = open_clips(write_set(folder, (kind,), clips, seconds), Columns())
        order = ClipOrder(table.rows, 0)
        makers = {seek: SampleMaker(table, order, MEL, CROP_S, seek=seek) for seek in SEEKS}
        out = np.zeros((MEL.frames, MEL.mels), dtype=np.float32)
        spent: dict[str, list[float]] = {seek: [] for seek in makers}
        for _ in range(rounds):
            for seek, maker in makers.items():
                began_s = time.process_time()
                for row in range(table.rows):
                    maker.make(row, row, out)
                spent[seek].append((time.process_time() - began_s) / table.rows)
        for seek, samples in spent.items():
            yield record.emit(f"{kind[0]}: CPU time of a sample, {seek}", samples)
        ratio = float(np.median(spent["exact"])) / float(np.median(spent["fast"]))
        yield record.emit(f"{kind[0]}: exact / fast", [ratio], unit="x")
        crops = [
            [read_crop(table.read_clip(row), kind[1], CROP, order.crop_at(row, row), seek) for seek in SEEKS]
            for row in range(table.rows)
        ]
        differences = [1e6 * float(np.abs(exact - fast).max()) for exact, fast in crops]
        yield record.emit(f"{kind[0]}: largest difference of a fast crop", [max(differences)], unit="1e-6")


def write_shards(folder: Path) -> None:
    """Files with record batches of so many bytes that the kernel reads none of them ahead with another."""
    draw, long_ago_s = np.random.default_rng(0), 1_700_000_000
    for number in range(SHARDS):
        path = folder / f"{number:04}.arrow"
        batch = pa.record_batch({"audio": [draw.bytes(50_000) for _ in range(4)], "label": [number % 400] * 4})
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as writer:
            for _ in range(SHARD_BATCHES):
                writer.write_batch(batch)
        os.utime(path, (long_ago_s, long_ago_s))
    os.sync()


def measure_start(folder: Path) -> Iterator[dict[str, Any]]:
    """Seconds until the rows and labels of all files are known, and how often the start waited for the disk."""
    for what in ("that counts its rows", "by an index"):
        for path in sorted(folder.iterdir()):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        done = subprocess.run([sys.executable, "-c", _STARTS, str(folder)], capture_output=True, text=True, check=True)
        wall_s, waits = done.stdout.split()
        yield record.emit(f"a start on {SHARDS} files {what}", [float(wall_s)])
        yield record.emit(f"a start on {SHARDS} files {what}: waits for the disk", [int(waits)], unit="page faults")


_STARTS = """
import resource, sys, time
from pathlib import Path
from prime_train.trainer.audio.clip_files import Columns
from prime_train.trainer.audio.columns import refuse_other_names
from prime_train.trainer.audio.tables import open_clips
path, before, began_s = Path(sys.argv[1]), resource.getrusage(resource.RUSAGE_SELF).ru_majflt, time.perf_counter()
refuse_other_names([path], Columns())
open_clips(path, Columns()).count_labels()
print(time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before)
"""


def measure_processes(path: Path, batches: int, batch: int) -> Iterator[dict[str, Any]]:
    """Samples per second of wall time, and memory beside the batches."""
    rates: dict[int, float] = {}
    for workers in (1, 2):
        with audio.batches(path, batch, workers=workers, threads=1, clip_s=CROP_S) as source:
            next(source)
            began_s = time.perf_counter()
            for _ in range(batches):
                next(source)
            rates[workers] = batches * batch / (time.perf_counter() - began_s)
        yield record.emit(f"samples per second, {workers} processes", [rates[workers]], unit="1/s")
        most_mib = (150e6 + workers * 80e6) / 2**20
        pss_mib = measure_memory(path, batch, workers)
        yield record.emit(f"PSS beside the batches, {workers} processes", [pss_mib], unit="MiB", most=round(most_mib))
    yield record.emit("scaling from 1 to 2 processes", [rates[2] / rates[1] / 2], unit="x", least=0.9)


_READS = """
import sys
import psutil
from prime_train import audio
path, batch, workers, clip_s = sys.argv[1:]
with audio.batches(path, int(batch), workers=int(workers), threads=1, clip_s=float(clip_s)) as source:
    for _ in range(4):
        next(source)
    processes = [psutil.Process(), *psutil.Process().children()]
    print(sum(one.memory_full_info().pss for one in processes))
"""


def measure_memory(path: Path, batch: int, workers: int) -> float:
    """MiB of a program that only reads batches, and of its workers, without the slots that all of them map."""
    words = [sys.executable, "-c", _READS, str(path), str(batch), str(workers), str(CROP_S)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return int(done.stdout) / 2**20 - 3 * batch * MEL.frames * MEL.mels * 4 / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if os.environ.get(ONE_THREAD) != "1":  # read by the library when it is imported, and set in every worker
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {ONE_THREAD: "1"})
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, kinds in (("xcl32", VORBIS), ("mixed", MIXED)):
            path = write_set(Path(folder), kinds, options.clips, options.seconds)
            rows += list(measure_ways(name, path, options.rounds))
        rows += list(measure_processes(path, batches=40, batch=16))
        rows += list(measure_seeks(Path(folder), options.clips, options.seconds, options.rounds))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        os.environ["PRIME_TRAIN_CACHE"] = cache  # of the child processes
        write_shards(Path(folder))
        rows += list(measure_start(Path(folder)))
    record.write("audio", rows)


if __name__ == "__main__":
    main()
