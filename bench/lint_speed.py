"""Measures how long lint takes for one prime-rl file in a new process, and for 1,000 files in one process.

The start is that of a user: one process per sample, both commands in turns, both with bytecode files, which pip writes
at installation and Python writes at the first start of an editable checkout. check-jsonschema checks the same TOML file
against a one-line schema, and a thousand files against that and against the schema of `schema export --prime-rl`. The
thousand files are the configs of a folder, repeated; without a folder, variants of a prime-rl file of this benchmark:
valid ones, and ones with five faults each. Each side runs on one core. Times are of the CPU where "cpu" is in the name,
because another program on the machine lengthens the others.

The thousand files have no limit.
"""

from __future__ import annotations

import argparse
import os
import resource
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
    parser.add_argument(
        "--check-jsonschema",
        type=Path,
        default=Path(sys.executable).parent / "check-jsonschema",
        help="best from an environment of its own, because it also imports packages that others have installed",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        own = Path(directory) / "rl.toml"
        own.write_text(RL, encoding="utf-8")
        files = sorted(options.folder.rglob("*.toml")) if options.folder else [own]
        peer = options.check_jsonschema
        rows = _cold(own, Path(directory), options.samples, peer)
        rows += _thousand(Path(directory), peer)
        rows.append(_many(files, Path(directory)))
    record.write("lint_speed", rows)


def _cold(file: Path, folder: Path, count: int, peer: Path) -> list[dict[str, object]]:
    schema = folder / "schema.json"
    schema.write_text('{"type": "object"}', encoding="utf-8")
    environment = record.with_bytecode(folder)
    reference, ours = "check-jsonschema, one prime-rl file", "prime-train lint, one prime-rl file"
    commands: dict[str, list[str | Path]] = {
        reference: [peer, "--schemafile", schema, file],
        ours: [*_lint_command(folder), file],
    }
    samples: dict[str, list[float]] = {what: [] for what in commands}
    cpu_s: dict[str, list[float]] = {what: [] for what in commands}
    for number in range(count + 1):  # the first round is not counted
        for what, command in commands.items():
            began_s = time.perf_counter()
            used_s = _cpu_s([str(word) for word in command], environment)
            if number > 0:
                samples[what].append(time.perf_counter() - began_s)
                cpu_s[what].append(used_s)
    beside = record.emit(reference, samples[reference])
    ratio = record.percentile(samples[ours], 0.5) / beside["median"]
    rows = [beside, record.emit(ours, samples[ours], ratio=round(ratio, 3), most=record.LINT_RATIO, beside=reference)]
    ratio = record.percentile(cpu_s[ours], 0.5) / record.percentile(cpu_s[reference], 0.5)
    rows.append(record.emit(f"{reference}, cpu", cpu_s[reference]))
    rows.append(record.emit(f"{ours}, cpu", cpu_s[ours], ratio=round(ratio, 3), beside=f"{reference}, cpu"))
    return rows


def _lint_command(folder: Path) -> list[str | Path]:
    """The command of the checkout that this file is in, as an installed script starts it."""
    script = folder / "prime-train"
    source = Path(__file__).resolve().parent.parent / "src"
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(source)!r})\nfrom prime_train.cli.entry import main\nmain()\n",
        encoding="utf-8",
    )
    return [sys.executable, script, "lint"]


_VALID = (("max_steps = 200", "max_steps = {}"), ("interval = 50", "interval = {}"))
_FAULTY = (
    ("lr = 1e-6", 'lr = "fast{}"'),
    ("keep_last = 2", "keep_lost = {}"),
    ("group_size = 16", "group_size = -{}"),
    ("weight_decay = 0.0", "weight_dekay = {}.0"),
    ("data_parallel_size = 2", "data_parallel_sise = {}"),
)


def _thousand(folder: Path, peer: Path) -> list[dict[str, object]]:
    """CPU seconds of one process over a thousand different files: ours, and check-jsonschema with two schemas."""
    made: dict[str, tuple[tuple[str, str], ...]] = {"valid": _VALID, "faulty": (*_VALID, *_FAULTY)}
    one_line, whole = folder / "schema.json", folder / "prime_rl.json"
    export = [*_lint_command(folder)[:-1], "schema", "export", "--prime-rl", "2026-08", "-o", whole]
    subprocess.run([str(word) for word in export], check=True, capture_output=True, env=record.with_bytecode(folder))
    for kind, changes in made.items():
        (folder / kind).mkdir()
        for number in range(1, _FILES + 1):
            text = RL
            for before, after in changes:
                text = text.replace(before, after.format(number))
            (folder / kind / f"rl_{number}.toml").write_text(text, encoding="utf-8")
    valid, faulty = ([str(path) for path in sorted((folder / kind).iterdir())] for kind in made)
    commands: dict[str, list[str]] = {
        "check-jsonschema, one-line schema": [str(peer), "--schemafile", str(one_line), *valid],
        "check-jsonschema, schema of prime-rl 2026-08": [str(peer), "--schemafile", str(whole), *valid],
        "prime-train lint": [*map(str, _lint_command(folder)), *valid],
        "prime-train lint, five faults each": [*map(str, _lint_command(folder)), *faulty],
    }
    core = str(min(os.sched_getaffinity(0)))
    rows: list[dict[str, object]] = []
    for what, command in commands.items():
        samples = [_cpu_s(["taskset", "-c", core, *command], record.with_bytecode(folder)) for _ in range(3)][1:]
        rows.append(record.emit(f"{what}, {_FILES} different files, cpu", samples, cores=1))
    return rows


def _cpu_s(command: list[str], environment: dict[str, str]) -> float:
    """CPU seconds of a command. Raises an error if it reports a usage error or a bug."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, check=False, capture_output=True, env=environment)
    if done.returncode > 1:  # 1: findings
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _many(files: list[Path], folder: Path) -> dict[str, object]:
    """The thousand files on one core, in a separate process."""
    core = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "-c", core, sys.executable, "-c", _MANY, str(_FILES), *map(str, files)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=record.with_bytecode(folder))
    return record.emit(f"lint, {_FILES} prime-rl files in one process", [float(done.stdout)], files=len(files), cores=1)


if __name__ == "__main__":
    main()
