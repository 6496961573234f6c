"""Measures how long the command line takes to start, compared with check-jsonschema on one TOML or YAML file.

The start is that of a user: one process per sample, files in the page cache, bytecode compiled for all programs (in a
folder of the benchmark, because some machines forbid Python to write bytecode). The commands take turns, so a slow
moment of the machine affects all of them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record

PRESETS = record.HERE.parent / "presets"
PRESET = PRESETS / "quickstart.toml"
LIMITS = {"prime-train --help": record.HELP_RATIO, "prime-train lint, one YAML file": record.YAML_RATIO}
PEERS = {"prime-train lint, one YAML file": "check-jsonschema, one YAML file"}  # else the first command
YAML = """\
base_model: NousResearch/Llama-3.2-1B
load_in_4bit: true
adapter: qlora
datasets:
  - path: teknium/GPT4-LLM-Cleaned
    type: alpaca
sequence_len: 2048
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 2
num_epochs: 1
optimizer: adamw_bnb_8bit
lr_scheduler: cosine
learning_rate: 2e-4
bf16: auto
gradient_checkpointing: true
flash_attention: true
output_dir: ./out
"""
ESTIMATE = ("estimate", PRESETS / "rl-h100-80gb.toml", "--gpus", "8xh100-80gb")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20)
    count = parser.parse_args().samples
    programs = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as directory:
        schema = Path(directory) / "schema.json"
        schema.write_text('{"type": "object"}', encoding="utf-8")
        yaml = Path(directory) / "train.yaml"
        yaml.write_text(YAML, encoding="utf-8")
        commands = {
            "check-jsonschema, one TOML file": [programs / "check-jsonschema", "--schemafile", schema, PRESET],
            "check-jsonschema, one YAML file": [programs / "check-jsonschema", "--schemafile", schema, yaml],
            "prime-train --help": [programs / "prime-train", "--help"],
            "prime-train lint quickstart": [programs / "prime-train", "lint", PRESET],
            "prime-train lint, one YAML file": [programs / "prime-train", "lint", yaml],
            "prime-train estimate rl-h100-80gb": [programs / "prime-train", *ESTIMATE],
        }
        written = {what: [str(word) for word in command] for what, command in commands.items()}
        samples = measure(written, count, record.with_bytecode(Path(directory)))
    first = next(iter(commands))
    version = _version(programs / "check-jsonschema")
    rows = []
    for what in commands:
        if what.startswith("check-jsonschema"):
            rows.append(record.emit(what, samples[what], version=version))
            continue
        beside = PEERS.get(what, first)
        ratio = record.percentile(samples[what], 0.5) / record.percentile(samples[beside], 0.5)
        limit = LIMITS.get(what)
        most = {} if limit is None else {"most": limit}
        rows.append(record.emit(what, samples[what], ratio=round(ratio, 3), **most, beside=beside))
    record.write("startup", rows)


def measure(commands: dict[str, list[str]], count: int, environment: dict[str, str]) -> dict[str, list[float]]:
    """Wall seconds of each command, `count` times in turns, after one round of warm-up."""
    samples: dict[str, list[float]] = {what: [] for what in commands}
    for number in range(count + 1):
        for what, command in commands.items():
            began_s = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, env=environment)
            if number > 0:
                samples[what].append(time.perf_counter() - began_s)
    return samples


def _version(program: Path) -> str:
    return subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout.split()[-1]


if __name__ == "__main__":
    main()
