"""Judges weights and KV tokens of vLLM against its start-up logs, and rows of kind "vllm". Judges no training.

A row's `kv_tokens` is what vLLM printed; its `extra` may tell version, weights_gib, kv_gib, tp and util.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import record

from prime_train.errors import UserError
from prime_train.estimate.hardware import of_name
from prime_train.estimate.inference import ServeSetup, inference_memory, serve_setup_of
from prime_train.estimate.inference_cache import capacity_of
from prime_train.estimate.inference_weights import weight_gib
from prime_train.estimate.shape import of_registry
from prime_train.estimate.values import Hardware
from prime_train.spec import Data, Run, RunSpec
from prime_train.spec.elsewhere import Inference
from prime_train.units import GIB

sys.path.insert(0, str(record.HERE.parent))
from tests.estimate.served import ROWS  # the logs are those of the tests

KINDS = ("vllm", "inference")


class Server(NamedTuple):
    """One start of a server and what it printed; None where it did not."""

    setup: ServeSetup
    hardware: Hardware
    weights_gib: float | None
    kv_gib: float | None
    kv_tokens: float | None


def servers(path: Path) -> list[Server]:
    """The published logs, and the rows of kind "vllm" of a table."""
    logs = [Server(row.setup, row.hardware, row.weights_gib, row.kv_gib, row.kv_tokens) for row in ROWS]
    return logs + list(_rows(path))


def pairs(found: list[Server]) -> dict[str, list[tuple[float, float]]]:
    """Quantity -> (estimated, printed). Tokens of the printed GiB where they are told, else of what is left over."""
    told: dict[str, list[tuple[float, float]]] = {"weights": [], "KV tokens": [], "KV tokens, a priori": []}
    for each in found:
        if each.weights_gib:
            told["weights"].append((weight_gib(each.setup), each.weights_gib))
        if not each.kv_tokens:
            continue
        if each.kv_gib:
            told["KV tokens"].append((capacity_of(each.setup, each.kv_gib * GIB).tokens, each.kv_tokens))
        elif each.hardware.usable_bytes:
            told["KV tokens, a priori"].append((inference_memory(each.setup, each.hardware).kv_tokens, each.kv_tokens))
    return {quantity: values for quantity, values in told.items() if values}


def _rows(path: Path) -> Iterator[Server]:
    with open(path, encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            shape = of_registry(line["model"])
            if line["kind"] in KINDS and shape is not None:
                run, hardware, extra = _run(line)
                setup = serve_setup_of(run, hardware, shape, extra.get("version", ""))
                yield Server(
                    setup,
                    hardware,
                    *(_number(text) for text in (extra.get("weights_gib"), extra.get("kv_gib"), line["kv_tokens"])),
                )


def _run(line: Mapping[str, str]) -> tuple[RunSpec, Hardware, dict[str, str]]:
    pieces = (part.partition("=") for part in line["extra"].split(";"))
    extra = {key.strip(): value for key, _, value in pieces if value}
    gpus = int(line["n_gpus"] or 1)
    try:
        hardware = of_name(f"{gpus}x{'-'.join(word for word in line['gpu'].split() if not word.startswith('HBM'))}")
    except UserError:
        hardware = Hardware(line["gpu"], line["gpu"], gpus, 0.0, 0.0, 0.0, None)
    inference = Inference(
        model_name=line["model"],
        ctx_tokens=int(line["seq_len"]) if line["seq_len"].isdigit() else None,
        tensor_parallel=int(extra.get("tp", gpus)),
        gpu_memory_fraction=float(extra.get("util", 0.9)),
    )
    return RunSpec(run=Run(name="served", max_steps=1), data=Data(sources=()), inference=inference), hardware, extra


def _number(text: str | None) -> float | None:
    return float(text) if text else None
