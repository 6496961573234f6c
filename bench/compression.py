"""Measures the space saved and the time taken by packing a checkpoint, compared with `tar -czf`.

    python bench/compression.py [--steps 30] [--rounds 3] [--folder DIR] [--run RUN_DIR]

The checkpoint comes from the bundled trainer under `prime-train run`: 44.8 M parameters in fp32 and AdamW's two
moments, 539 MB, trained for some steps on the source of the Python standard library, so weights and moments are
realistic. With --run, the newest complete checkpoint of an existing run directory is used.

Packing is `prime-train ckpt compress` in a separate process: it compares the checkpoint with its SHA-256, packs,
unpacks, compares and syncs to disk. tar neither compares nor syncs. Both run in turns in each round, and ratios are
within a round. CPU seconds are recorded too, because wall time means little on a shared machine. At the end the
checkpoint is packed once with its moments rounded to bf16, which is lossy.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import record

from prime_train.checkpoints import layout
from prime_train.core.rundir import RunDir

PROGRAM = Path(sys.executable).with_name("prime-train")
CONFIG = """\
[run]
name = "packed"
max_steps = {steps}
[model]
layers = 12
hidden_size = 512
heads = 8
[tokenizer]
vocab_size = 12288
[data]
sources = [{{kind = "python-stdlib"}}]
ctx_tokens = 256
[batch]
micro_batch = 4
global_batch = 4
[checkpoint]
interval_steps = {steps}
[eval]
batches = 1
"""


@dataclass(slots=True)
class Samples:
    """One way of packing: seconds and CPU seconds per round, and bytes of the result."""

    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    bytes: int = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="output folder; default: the system's temporary folder")
    parser.add_argument("--run", type=Path, help="a run directory; default: train one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        trained = given.run or train(Path(folder), given.steps)
        newest = layout.newest_complete(RunDir(trained).checkpoints)
        if newest is None:
            raise SystemExit(f"no complete checkpoint in {trained}")
        report(*measure(newest, Path(folder), given.rounds))


def train(folder: Path, steps: int) -> Path:
    """The run directory of a short training by the bundled trainer."""
    (folder / "run.toml").write_text(CONFIG.format(steps=steps), encoding="utf-8")
    subprocess.run([PROGRAM, "run", "run.toml", "--no-validate"], cwd=folder, check=True, stdout=sys.stderr)
    return folder / "runs" / "packed"


def measure(checkpoint: layout.SavedCheckpoint, folder: Path, rounds: int) -> tuple[int, dict[str, Samples]]:
    """Bytes of the checkpoint's files, and the samples of each way of packing."""
    run_dir = RunDir(folder / "runs" / "measured")
    run_dir.events.mkdir(parents=True)
    step = run_dir.checkpoint(checkpoint.step)
    shutil.copytree(checkpoint.path, step)
    before = content(step)
    samples = {name: Samples() for name in ("tar", "compress", "restore", "untar", "lossy")}
    archive = folder / "checkpoint.tar.gz"
    for _ in range(rounds):
        timed(samples["tar"], ["tar", "-czf", archive, step.name], step.parent)
        samples["tar"].bytes = archive.stat().st_size
        timed(samples["untar"], ["tar", "-xzf", archive, "-C", folder], folder)
        shutil.rmtree(folder / step.name)
        archive.unlink()
        timed(samples["compress"], [PROGRAM, "ckpt", "compress", run_dir.path.name, "--json"], folder)
        samples["compress"].bytes = sum(size for size, _ in content(step).values())
        timed(samples["restore"], [PROGRAM, "ckpt", "restore", run_dir.path.name, "--json"], folder)
        if content(step) != before:
            raise SystemExit("the restored checkpoint differs from the packed one")
    timed(samples["lossy"], [PROGRAM, "ckpt", "compress", run_dir.path.name, "--moments", "bf16", "--json"], folder)
    samples["lossy"].bytes = sum(size for size, _ in content(step).values())
    return sum(size for size, _ in before.values()), samples


def content(folder: Path) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 of each file except the manifest, computed from the files themselves."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != layout.MANIFEST:
            with open(path, "rb") as file:
                found[str(path.relative_to(folder))] = (
                    path.stat().st_size,
                    hashlib.file_digest(file, "sha256").hexdigest(),
                )
    return found


def timed(samples: Samples, command: list[Any], cwd: Path) -> None:
    """Runs a command to its end. Pending writes of earlier commands are synced first."""
    os.sync()
    before, began = os.times(), time.perf_counter()
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL)
    samples.wall_s.append(time.perf_counter() - began)
    after = os.times()
    samples.cpu_s.append(after.children_user + after.children_system - before.children_user - before.children_system)


def report(size_bytes: int, samples: dict[str, Samples]) -> None:
    names = {
        "tar": "tar -czf",
        "compress": "prime-train ckpt compress, compared and durable",
        "untar": "tar -xzf",
        "restore": "prime-train ckpt restore, compared and durable",
        "lossy": "prime-train ckpt compress --moments bf16 (lossy), compared and durable",
    }
    rows = []
    for key, name in names.items():
        found = samples[key]
        wall_s, cpu_s = record.percentile(found.wall_s, 0.5), record.percentile(found.cpu_s, 0.5)
        sizes: dict[str, Any] = {
            "mb_per_s": round(size_bytes / 1e6 / wall_s, 1),
            "mb_per_cpu_s": round(size_bytes / 1e6 / cpu_s, 1),
            "cpu_s": round(cpu_s, 2),
            "checkpoint_mb": round(size_bytes / 1e6, 1),
            "load_average": round(os.getloadavg()[0], 1),
        }
        if found.bytes:
            sizes["saved"] = round(1 - found.bytes / size_bytes, 4)
        rows.append(record.emit(name, found.wall_s, **sizes))
    tar, packed = samples["tar"], samples["compress"]
    for what, pairs in (
        ("ckpt compress, times as fast as tar -czf", zip(tar.wall_s, packed.wall_s, strict=True)),
        ("ckpt compress, times less CPU time than tar -czf", zip(tar.cpu_s, packed.cpu_s, strict=True)),
    ):
        rows.append(record.emit(what, [t / p for t, p in pairs], unit="ratio"))
    saved = (size_bytes - packed.bytes) / (size_bytes - tar.bytes)
    rows.append(record.emit("ckpt compress, times as much saved as by tar -czf", [saved], unit="ratio"))
    record.write("compression", rows)
    print(json.dumps({"restore": "bit-equal in every round"}), file=sys.stderr)


if __name__ == "__main__":
    main()
