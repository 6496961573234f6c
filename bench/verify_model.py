"""Measures how long `prime-train verify-model` takes on a local folder, one process per sample. Required: at most 3 s.

The folder is like that of Qwen3-0.6B: config.json, weights of the same shapes (zeros, sparse on disk), a tokenizer of
151,669 tokens and a chat template with tools.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import record

sys.path.insert(0, str(record.HERE.parent))
from tests.fakes.model_folder import FORGETFUL, QWEN3, tensors_of, write_model, write_weights

BAR_S = 3.0
TOKENS = 151_669
CONFIG = QWEN3 | {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10)
    count = parser.parse_args().samples
    with tempfile.TemporaryDirectory() as directory:
        folder = folder_of(Path(directory) / "model")
        command = [str(Path(sys.executable).with_name("prime-train")), "verify-model", str(folder), "--json"]
        environment = record.with_bytecode(Path(directory))
        samples = [_sample(command, environment) for _ in range(count + 1)][1:]  # the first one compiles bytecode
    row = record.emit("verify-model on a local folder", samples, asked_s=BAR_S, within=max(samples) <= BAR_S)
    record.write("verify_model", [row])


def folder_of(folder: Path) -> Path:
    """A folder with the shapes of Qwen3-0.6B."""
    write_model(folder, CONFIG, template=FORGETFUL)
    tensors = _shapes()
    write_weights(folder / "model.safetensors", tensors)
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = tokenizer["model"]["vocab"]
    first = 256 + len(tokenizer["added_tokens"])
    vocab |= {f"token{number}": number for number in range(first, TOKENS)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


def _shapes() -> dict[str, tuple[int, ...]]:
    return tensors_of(CONFIG) | {"model.embed_tokens.weight": (CONFIG["vocab_size"], CONFIG["hidden_size"])}


def _sample(command: list[str], environment: dict[str, str]) -> float:
    begin_s = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    took_s = time.perf_counter() - begin_s
    verdict = json.loads(done.stdout)
    if verdict["numbers"]["parameters"] != 596_049_920 or not verdict["usable"]:
        raise SystemExit(f"wrong verdict: {verdict['numbers']}")
    return took_s


if __name__ == "__main__":
    main()
