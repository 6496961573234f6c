"""Compares estimated weights and KV tokens of vLLM with its start-up logs and with rows of kind "vllm".

A row's `kv_tokens` is the number that vLLM printed. `measured_peak_gib_per_gpu` is the weights; if `extra` has the
weights, it is the KV cache, unless `extra` has that too. `extra` may also have version, tp, pp, dp, util, max_num_seqs,
batched_tokens, kv_cache_dtype, quantization, eager.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import record
import row_cells
from memory_rows import MEASURED, SERVING
from row_cells import Unreadable, flag, number, text, whole

from prime_train.core.units import GIB
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.serving.server_cache import capacity_of
from prime_train.estimate.serving.server_memory import inference_memory
from prime_train.estimate.serving.server_setup import ServeSetup, serve_setup_of
from prime_train.estimate.serving.server_weights import weight_gib
from prime_train.estimate.values import Hardware, Interval
from prime_train.spec import Data, Run, RunSpec
from prime_train.spec.prime_rl_parts import Inference

sys.path.insert(0, str(record.HERE.parent))
from tests.unit.estimate.served import ROWS  # the logs are those of the tests

_WEIGHTS = ("weights_gib", "weights", "weight_gib", "model_weights_gib", "model_weights", "model_gib")
_CACHE = ("kv_gib", "kv_cache_gib", "available_kv_gib", "kv_cache", "kv")
_TOKENS = ("kv_tokens", "kv_cache_tokens", "cache_tokens")
_FRACTION = ("util", "gpu_memory_utilization", "gpu_mem_util", "gmu")
_SEQUENCES = ("max_num_seqs", "num_seqs", "seqs")
_BATCHED = ("batched_tokens", "max_num_batched_tokens")
_VERSION = ("version", "vllm", "vllm_version")
_QUANTIZED = {
    "mxfp4": "mxfp4",
    "nvfp4": "modelopt_fp4",
    "fp8": "fp8",
    "float8": "fp8",
    "awq": "awq",
    "gptq": "gptq",
    "bitsandbytes": "bitsandbytes",
    "bnb": "bitsandbytes",
    "nf4": "bitsandbytes",
    "int8": "int8",
    "int4": "int4",
}
_WEIGHTS_OFF = 0.02  # the largest error over 29 start-up logs is 1.5 %


class Server(NamedTuple):
    """One start of a server and the values it printed; None if it did not print a value."""

    id: str
    setup: ServeSetup
    hardware: Hardware
    weights_gib: float | None
    kv_gib: float | None
    kv_tokens: float | None


class Answer(NamedTuple):
    """One quantity of a server, estimated and printed. "A priori": KV tokens without knowing the GiB of the cache."""

    quantity: str
    unit: str
    measured: float | None
    estimate: Interval


def logs() -> list[Server]:
    """The published start-up logs."""
    return [
        Server(f"log:{number}", row.setup, row.hardware, row.weights_gib, row.kv_gib, row.kv_tokens)
        for number, row in enumerate(ROWS, start=1)
    ]


def read(path: Path) -> tuple[list[Server], list[tuple[str, str]]]:
    """The servers of a table, and the unreadable rows: id and reason."""
    found: list[Server] = []
    left_out: list[tuple[str, str]] = []
    for id, line in row_cells.lines(path):
        if text(line, "kind").lower() in SERVING:
            try:
                found.append(_server(id, line))
            except Unreadable as error:
                left_out.append((id, str(error)))
    return found, left_out


def answers(server: Server) -> tuple[Answer, ...]:
    """Weights and KV tokens. Tokens come from the printed GiB of the cache, else from the memory that is left over.
    Tokens come first if they were printed."""
    gib = weight_gib(server.setup)
    weights = Answer("weights", "GiB", server.weights_gib, Interval(1 - _WEIGHTS_OFF, 1.0, 1 + _WEIGHTS_OFF).times(gib))
    tokens = _tokens(server)
    if tokens is None:
        return (weights,)
    return (tokens, weights) if server.kv_tokens else (weights, tokens)


def _tokens(server: Server) -> Answer | None:
    if server.kv_gib:
        tokens = float(capacity_of(server.setup, server.kv_gib * GIB).tokens)
        return Answer("KV tokens", "tokens", server.kv_tokens, Interval(tokens, tokens, tokens))
    if not server.hardware.usable_bytes:
        return None
    memory = inference_memory(server.setup, server.hardware)
    high = float(capacity_of(server.setup, memory.kv_bytes.high).tokens)
    interval = Interval(float(memory.kv_tokens_low), float(memory.kv_tokens), max(high, float(memory.kv_tokens)))
    return Answer("KV tokens, a priori", "tokens", server.kv_tokens, interval)


def pairs(servers: Sequence[Server]) -> dict[str, list[tuple[float, float]]]:
    """Quantity -> (estimated, printed), for printed values."""
    found: dict[str, list[tuple[float, float]]] = {"weights": [], "KV tokens": [], "KV tokens, a priori": []}
    for server in servers:
        for answer in answers(server):
            if answer.measured:
                found[answer.quantity].append((answer.estimate.typical, answer.measured))
    return {quantity: values for quantity, values in found.items() if values}


def _server(id: str, line: Mapping[str, str]) -> Server:
    extra = row_cells.pairs(line.get("extra", ""))
    shape = row_cells.model(text(line, "model"))
    gpus = whole(line, "n_gpus", 1)
    hardware = row_cells.hardware(text(line, "gpu"), gpus)
    version = text(extra, _key(extra, _VERSION)).lstrip("vV")
    setup = serve_setup_of(_run(line, extra, shape), hardware, shape, version)
    peak, weights = number(line, MEASURED), number(extra, _key(extra, _WEIGHTS))
    cache = number(extra, _key(extra, _CACHE))
    if peak and weights is None:
        weights = peak
    elif peak and cache is None:
        cache = peak
    tokens = number(line, "kv_tokens") or number(extra, _key(extra, _TOKENS))
    return Server(id, setup, hardware, weights or None, cache or None, tokens or None)


def _run(line: Mapping[str, str], extra: Mapping[str, str], shape: ModelShape) -> RunSpec:
    tensor, pipeline, data = _spread(line, extra)
    fraction = number(extra, _key(extra, _FRACTION))
    precision = text(line, "precision").lower()
    inference = Inference(
        model_name=shape.name,
        ctx_tokens=whole(line, "seq_len") if text(line, "seq_len") else None,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        data_parallel=data,
        expert_parallel=_splits_experts(line, extra),
        gpu_memory_fraction=fraction / 100 if fraction and fraction > 1 else fraction,
        dtype="float32" if precision in ("fp32", "float32") else None,
        quantization=_quantization(shape, precision, extra),
        max_sequences=_count(extra, _SEQUENCES),
        batched_tokens=_count(extra, _BATCHED),
        cache_dtype=extra.get("kv_cache_dtype") or extra.get("kv_dtype"),
        enforce_eager=flag(extra, "eager") or flag(extra, "enforce_eager"),
    )
    return RunSpec(run=Run(name="served", max_steps=1), data=Data(sources=()), inference=inference, format="prime-rl")


def _spread(line: Mapping[str, str], extra: Mapping[str, str]) -> tuple[int, int, int]:
    """(tensor, pipeline, data parallel): from the row, else all GPUs in tensor parallelism."""
    sizes = row_cells.degrees(line.get("parallelism", ""))
    pipeline, data = (whole(extra, name, sizes.get(name, 1)) for name in ("pp", "dp"))
    gpus = whole(line, "n_gpus", 1)
    tensor = whole(extra, "tp", sizes.get("tp", max(1, gpus // (pipeline * data))))
    if text(line, "n_gpus") and tensor * pipeline * data > gpus:
        raise Unreadable(f"tp {tensor} x pp {pipeline} x dp {data} is more than {gpus} GPUs")
    return tensor, pipeline, data


def _splits_experts(line: Mapping[str, str], extra: Mapping[str, str]) -> bool:
    """Whether each expert is on a single GPU: "tp4_ep", "ep8", ep=yes."""
    named = re.search(r"(?:^|_|\b)ep(\d*)(?:$|_|\b)", line.get("parallelism", "").lower())
    if named:
        return named[1] != "1"
    return extra.get("ep", "").lower() not in ("", "0", "1", "no", "false", "none")


def _key(extra: Mapping[str, str], names: Sequence[str]) -> str:
    return next((name for name in names if name in extra), names[0])


def _count(extra: Mapping[str, str], names: Sequence[str]) -> int | None:
    value = number(extra, _key(extra, names), 1)
    return None if value is None else int(value)


def _quantization(shape: ModelShape, precision: str, extra: Mapping[str, str]) -> str | None:
    """The quantisation method that a row names for a checkpoint that is not quantised."""
    cell = (extra.get("quantization") or extra.get("quant") or precision).lower()
    return None if shape.quantization else next((method for name, method in _QUANTIZED.items() if name in cell), None)
