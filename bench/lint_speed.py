"""Measures how long lint takes for one prime-rl file in a new process, and for 1,000 files in one process.

The start is that of a user: one process per sample, both commands in turns, both with bytecode files, which pip writes
at installation and Python writes at the first start of an editable checkout. check-jsonschema checks the same TOML file
against a one-line schema. The thousand files are the configs of a folder, repeated; without a folder, a prime-rl file
of this benchmark.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record

RL = """\
max_steps = 200
seq_len = 4096

[model]
name = "Qwen/Qwen3-1.7B"

[ckpt]
interval = 50
keep_last = 2

[deployment]
num_train_gpus = 2
num_infer_gpus = 2

[trainer.optim]
lr = 1e-6
weight_decay = 0.0
max_norm = 1.0

[orchestrator]
batch_size = 128
group_size = 16

[orchestrator.train.sampling]
max_completion_tokens = 1024

[[orchestrator.train.source]]
name = "reverse-text"

[orchestrator.train.source.env.taskset]
id = "reverse-text"

[inference.vllm]
max_model_len = 4096
data_parallel_size = 2
"""
_FILES = 1000
_MANY = """
import sys, time
from prime_train.rules.judge import lint
paths = sys.argv[2:] * (int(sys.argv[1]) // len(sys.argv[2:]) + 1)
texts = [(open(path, encoding="utf-8").read(), path) for path in paths[: int(sys.argv[1])]]
began = time.perf_counter()
for text, path in texts:
    lint(text, path)
print(time.perf_counter() - began)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="folder of config files for the thousand files")
    parser.add_argument("--samples", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        own = Path(directory) / "rl.toml"
        own.write_text(RL, encoding="utf-8")
        files = sorted(options.folder.rglob("*.toml")) if options.folder else [own]
        rows = [*_cold(own, Path(directory), options.samples), _many(files, Path(directory))]
    record.write("lint_speed", rows)


def _cold(file: Path, folder: Path, count: int) -> list[dict[str, object]]:
    schema = folder / "schema.json"
    schema.write_text('{"type": "object"}', encoding="utf-8")
    environment = record.with_bytecode(folder)
    programs = Path(sys.executable).parent
    reference, ours = "check-jsonschema, one prime-rl file", "prime-train lint, one prime-rl file"
    commands = {
        reference: [programs / "check-jsonschema", "--schemafile", schema, file],
        ours: [programs / "prime-train", "lint", file],
    }
    samples: dict[str, list[float]] = {what: [] for what in commands}
    for number in range(count + 1):  # the first round is not counted
        for what, command in commands.items():
            began_s = time.perf_counter()
            subprocess.run([str(word) for word in command], check=True, capture_output=True, env=environment)
            if number > 0:
                samples[what].append(time.perf_counter() - began_s)
    beside = record.emit(reference, samples[reference])
    ratio = record.percentile(samples[ours], 0.5) / beside["median"]
    return [beside, record.emit(ours, samples[ours], ratio=round(ratio, 3), beside=reference)]


def _many(files: list[Path], folder: Path) -> dict[str, object]:
    """The thousand files on one core, in a separate process."""
    core = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "-c", core, sys.executable, "-c", _MANY, str(_FILES), *map(str, files)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=record.with_bytecode(folder))
    return record.emit(f"lint, {_FILES} prime-rl files in one process", [float(done.stdout)], files=len(files), cores=1)


if __name__ == "__main__":
    main()
