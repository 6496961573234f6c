"""Lints N hostile inputs: mutants of configs and scripts, fragments, broken bytes, and large texts of a megabyte.

Counts tracebacks (there must be none). Measures time and memory for a megabyte, and for the largest script that lint
reads, each in a separate process. `cpu` are CPU seconds, which show whether the input was slow or the machine busy.
Prints one JSON line per measurement.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import record

sys.path.insert(0, str(record.HERE.parent))

from tests.hostile import LARGE_SCRIPTS, LARGE_TEXTS, SCRAPS, SCRIPT, broken, large_script, mutant

from prime_train.cli.lint.files import check
from prime_train.core.errors import UserError
from prime_train.rules.judge import lint

MEGABYTE = 1_000_000
LARGEST_SCRIPT = 190_000  # config/jax/script.py reads up to 200,000 characters
_LINT_ALONE = """
import resource, sys, time
from prime_train.cli.lint.files import check
began = time.perf_counter()
busy = time.process_time()
check([sys.argv[1]])
peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(time.perf_counter() - began, time.process_time() - busy, peak_mib)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("n", type=int, nargs="?", default=20_000, help="hostile inputs (default: 20000)")
    parser.add_argument("--folder", type=Path, action="append", default=[], help="folder of config files to mutate too")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    folders = [record.HERE.parent / "presets", *options.folder]
    texts = [path.read_text(encoding="utf-8") for folder in folders for path in sorted(folder.rglob("*.toml"))]
    with tempfile.TemporaryDirectory() as directory:
        rows = [_many(texts, options.n, options.seed, Path(directory)), *_megabytes(Path(directory))]
    record.write("lint_robustness", rows)
    if any(row.get("tracebacks") for row in rows):
        sys.exit(1)


def _many(texts: list[str], count: int, seed: int, folder: Path) -> dict[str, object]:
    chance = random.Random(seed)
    samples: list[float] = []
    worst_cpu_s = 0.0
    tracebacks = 0
    for _ in range(count):
        began_s, busy_s = time.perf_counter(), time.process_time()
        try:
            _one(texts, chance, folder)
        except Exception:  # this benchmark searches for any exception
            tracebacks += 1
            traceback.print_exc()
        samples.append(time.perf_counter() - began_s)
        worst_cpu_s = max(worst_cpu_s, time.process_time() - busy_s)
    worst = {"worst": round(max(samples), 3), "worst_cpu": round(worst_cpu_s, 3)}
    return record.emit("lint, hostile inputs", samples, tracebacks=tracebacks, **worst, seed=seed)


def _one(texts: list[str], chance: random.Random, folder: Path) -> None:
    match chance.randrange(10):
        case 0:
            lint("".join(chance.choices(SCRAPS, k=chance.randint(0, 40))), "t.toml")
        case 1:
            file = folder / "broken.toml"
            file.write_bytes(broken(chance.choice(texts).encode(), chance))
            with contextlib.suppress(UserError):
                check([str(file)])
        case 2:
            lint(chance.choice(list(LARGE_TEXTS.values()))(chance.randint(10, 5000)), "t.toml")
        case 3:
            with contextlib.suppress(UserError):
                lint(mutant(SCRIPT, chance), "t.py")
        case _:
            lint(mutant(chance.choice(texts), chance), "t.toml")


def _megabytes(folder: Path) -> list[dict[str, object]]:
    rows = []
    inputs = {f"1 MB: {name}": (f"{name}.toml", text(MEGABYTE)) for name, text in LARGE_TEXTS.items()}
    inputs |= {f"script: {name}": (f"{name}.py", large_script(name, LARGEST_SCRIPT)) for name in LARGE_SCRIPTS}
    for name, (file_name, text) in inputs.items():
        file = folder / file_name
        file.write_text(text, encoding="utf-8", newline="")
        command = [sys.executable, "-c", _LINT_ALONE, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(done.stderr, file=sys.stderr)
            rows.append(record.emit(f"lint, {name}", [0.0], tracebacks=1))
            continue
        seconds, cpu_s, peak_mib = (float(number) for number in done.stdout.split())
        rows.append(record.emit(f"lint, {name}", [seconds], cpu=round(cpu_s, 3), peak_mib=round(peak_mib)))
    return rows


if __name__ == "__main__":
    main()
