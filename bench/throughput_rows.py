"""Reads measured training speed, in the forms it was published in, into the rows the estimate knows. Judges nothing.

Forms: llm-foundry's benchmark table; the columns of a prime-rl baseline or a published trainer's table (kind, model,
gpu, n_gpus, parallelism, ..., tps); and registry/measured_rows/throughput.csv. They are told apart by their columns.
`python bench/throughput_rows.py FILE...` writes the rows of FILEs in the last form to stdout.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from prime_train.errors import UserError
from prime_train.estimate import hardware as hardware_of
from prime_train.estimate import shape as shape_of
from prime_train.estimate.shape import ModelShape
from prime_train.estimate.throughput_basis import MeasuredRow, of_columns
from prime_train.estimate.train_setup import Checkpointing
from prime_train.estimate.values import Hardware
from prime_train.estimate.work import StepSetup

COLUMNS = (
    *("model", "gpu", "gpus", "trainer", "generation", "objective", "ctx_tokens", "micro_batch_tokens"),
    *(
        "micro_batches",
        "recompute",
        "reshard",
        "activation_offload",
        "lora_rank",
        "head",
        "kernel",
        "fused",
        "precision",
    ),
    *("parameter_offload", "optimizer_offload", "tokens_per_s", "source"),
)
FLAGS = ("reshard", "activation_offload", "parameter_offload", "optimizer_offload", "fused")
# Name, layers, width, heads of llm-foundry's small models. Source: llm-foundry scripts/train/yamls/pretrain.
_SMALL_MPT = {"125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12)}
_MPT_VOCABULARY = 50368
_GPU_IDS = {
    "RTX A6000": "rtx-a6000",
    "H100 80GB HBM3": "h100-80gb",
    "H100 96GB HBM2e": "h100-80gb",
    "H200": "h200",
    "B200": "b200",
    "A100 80GB": "a100-80gb",
    "RTX 4090": "rtx-4090",
}
_RECOMPUTE: dict[str, Checkpointing] = {
    "recompute": "full",
    "offload": "full",
    "full": "full",
    "selective": "selective",
    "none": "none",
}
_HBM2E_BYTES_PER_S = 2.4e12  # of the H100 that torchtitan's table was measured on: benchmarks/llama3_h100_202412
# Date of prime-rl's code behind a baseline, by the letter the tables give it. 15 January is told apart: what it does
# with adapters of experts on Blackwell, later code with the same config keys does not.
_GENERATIONS = {"J": "2026-01-15", "F": "2026-02", "M": "2026-05", "U": "2026-06"}


class Unusable(ValueError):
    """A line that is no measurement of speed, with the reason."""


def read(path: Path) -> tuple[list[MeasuredRow], list[str]]:
    """The rows of a file, and why each of its other lines is none."""
    rows, skipped = [], []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        of_line = _form(reader.fieldnames or ())
        for number, line in enumerate(reader, start=2):
            try:
                rows.append(of_line(line))
            except ValueError as error:
                skipped.append(f"{path.name}:{number}: {error}")
    return rows, skipped


def _form(columns: object) -> Callable[[Mapping[str, str]], MeasuredRow]:
    names = set(columns) if isinstance(columns, list | tuple) else set()
    if {"SeqLen", "nGPU", "Tps_gpu"} <= names:
        return of_foundry
    if {"n_gpus", "parallelism", "tps"} <= names:
        return of_baseline
    if set(COLUMNS) <= names:
        return of_columns
    raise SystemExit(f"columns {sorted(names)} are of no form that is known; see {__file__}")


def of_foundry(line: Mapping[str, str]) -> MeasuredRow:
    """A line of llm-foundry scripts/train/benchmarking: MPT, ALiBi or learned positions, Triton flash attention."""
    gpus, ctx_tokens = int(line["nGPU"]), int(line["SeqLen"])
    return MeasuredRow(
        StepSetup(
            shape=_mpt(line["Model"]),
            ctx_tokens=ctx_tokens,
            micro_batch_tokens=int(line["MicroBatch"]) * ctx_tokens,
            micro_batches=int(line["GradAccum"]),
            dp_shard=gpus,
            trainer="llm-foundry",
            recompute="full" if line["ActCkpt"] == "True" else "none",
            reshard=line["Sharding"] == "FULL_SHARD",
            kernel="triton",
            precision="fp8" if line["Precision"] == "amp_fp8" else "bf16",
        ),
        hardware_of.of_name(f"{gpus}x{line['GPU'].replace('_', '-')}"),
        float(line["Tps_gpu"]) * gpus,
        "llm-foundry scripts/train/benchmarking/README.md",
    )


def _mpt(name: str) -> ModelShape:
    shape = shape_of.of_registry(f"mosaicml/mpt-{name}")
    if shape is not None:
        return shape
    if name not in _SMALL_MPT:
        raise Unusable(f"mpt-{name} has no shape in the registry")
    layers, width, heads = _SMALL_MPT[name]
    return ModelShape(
        name=f"mosaicml/mpt-{name}",
        vocab_size=_MPT_VOCABULARY,
        layers=layers,
        hidden_size=width,
        heads=heads,
        kv_heads=heads,
        head_dim=width // heads,
        mlp_size=4 * width,
        parameters=12 * layers * width**2 + _MPT_VOCABULARY * width,
        tie_embeddings=True,
        source="llm-foundry scripts/train/yamls/pretrain",
        gated_mlp=False,
        dense_layers=layers,
    )


def of_baseline(line: Mapping[str, str]) -> MeasuredRow:
    """A line with a config fact per column; `extra` holds key=value pairs, `parallelism` parts like fsdp8_cp2."""
    if line["kind"] != "train" or not line["tps"]:
        raise Unusable("no speed was measured")
    shape = shape_of.of_registry(line["model"])
    if shape is None:
        raise Unusable(f"{line['model']} has no shape in the registry")
    extra = dict(part.split("=", 1) for part in line["extra"].split(";") if "=" in part)
    trainer, gpus, ctx_tokens = extra.get("trainer", ""), int(line["n_gpus"]), int(line["seq_len"])
    mesh = _mesh(line["parallelism"])
    return MeasuredRow(
        StepSetup(
            shape=shape,
            ctx_tokens=ctx_tokens,
            micro_batch_tokens=int(line["micro_batch"]) * ctx_tokens,
            micro_batches=int(extra.get("grad_accum", "1")),
            dp_shard=max(1, gpus // (mesh["tp"] * mesh["cp"] * mesh["pp"])),
            tp=mesh["tp"],
            cp=mesh["cp"],
            pp=mesh["pp"],
            ep=mesh["ep"],
            trainer=trainer,
            generation=_GENERATIONS.get(extra.get("era", ""), ""),
            objective="rl" if extra.get("type") == "rl" else "sft" if trainer == "prime-rl" else "pretrain",
            recompute=_recompute(line["ac"]),
            activation_offload=line["ac"] == "offload",
            parameter_offload=extra.get("fsdp_cpu_offload") == "1",
            # prime-rl keeps the optimizer's states on the CPU by default from June 2026 on.
            optimizer_offload=extra.get("fsdp_cpu_offload") == "1" or extra.get("era") == "U",
            lora_rank=int(line["lora_rank"] or 0),
            head=_head(extra.get("head", "full_logits")),  # type: ignore[arg-type]
            kernel=_kernel(line["attention"]),  # type: ignore[arg-type]
            fused=line["compile"] == "yes",
            precision="fp8" if "float8" in line["precision"] else "bf16",
        ),
        _gpu(line["gpu"], gpus),
        float(line["tps"]),
        line["source"],
    )


def _mesh(parallelism: str) -> dict[str, int]:
    """ "fsdp4_cp2_ep1" -> the sizes of tp, cp, pp and ep, 1 where one is not named."""
    named = {name: int(number) for name, number in re.findall(r"(cp|ep|tp|pp)(\d+)", parallelism)}
    return {name: named.get(name, 1) for name in ("tp", "cp", "pp", "ep")}


def _head(name: str) -> str:
    if name.startswith("token_chunk"):
        return "tiled" if "vocab_chunk" in name else "token_chunked"
    return "vocab_chunked" if name.startswith("vocab_chunk") else "full"


def _kernel(name: str) -> str:
    match = re.search(r"flash_attention_(\d)", name)
    return f"fa{match[1]}" if match else "sdpa"


def _recompute(name: str) -> Checkpointing:
    if name not in _RECOMPUTE:
        raise Unusable(f"checkpointing {name!r} is none of {', '.join(_RECOMPUTE)}")
    return _RECOMPUTE[name]


def _gpu(name: str, gpus: int) -> Hardware:
    """By the name that tables give it, else by one of the registry's ("A100-80GB", "RTX 3090")."""
    try:
        hardware = hardware_of.of_name(f"{gpus}x{_GPU_IDS.get(name, name)}")
    except UserError as error:
        raise Unusable(error.what) from error
    return hardware._replace(bandwidth_bytes_per_s=_HBM2E_BYTES_PER_S) if "HBM2e" in name else hardware


def columns_of(row: MeasuredRow) -> dict[str, object]:
    """A row in the form of registry/measured_rows/throughput.csv."""
    setup = row.setup
    flags = {name: "yes" if getattr(setup, name) else "no" for name in FLAGS}
    plain = {name: getattr(setup, name) for name in COLUMNS if hasattr(setup, name)}
    return {
        **plain,
        **flags,
        "model": setup.shape.name,
        "gpu": row.hardware.id,
        "gpus": setup.gpus,
        "tokens_per_s": f"{row.tokens_per_s:g}",
        "source": row.source,
    }


def main() -> None:
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for path in sys.argv[1:]:
        rows, skipped = read(Path(path))
        for row in rows:
            if shape_of.of_registry(row.setup.shape.name) and row.setup.dp_shard == row.setup.gpus:
                writer.writerow(columns_of(row))
        print(*skipped, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
