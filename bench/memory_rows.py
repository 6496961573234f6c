"""Turns a row of measured memory into the RunSpec, the hardware and the model a user would have. Never measures.

`described` is built from every column but the measured one; what it makes goes through the code of `estimate`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from prime_train.errors import UserError
from prime_train.estimate.hardware import of_name
from prime_train.estimate.shape import ModelShape, of_registry
from prime_train.estimate.values import Hardware
from prime_train.spec import Batch, Data, Run, RunSpec, Source
from prime_train.spec.elsewhere import Deployment, Finetune, Launch, Lora, Recipe, Trainer

DEVELOPMENT = Path(__file__).resolve().parent / "anchors" / "memory_rows.csv"  # each row names its source
MEASURED = "measured_peak_gib_per_gpu"
_ERAS = {"J": "2026-01", "F": "2026-02", "M": "2026-05", "U": "2026-06"}
_ADAPTERS = {"adapter": "adapter", "adapter_v2": "adapter-v2", "lora": "lora", "qlora": "lora", "full": "none"}
_QUANTIZATIONS = {
    "bnb.nf4": "nf4",
    "bnb.nf4-dq": "nf4-dq",
    "bnb.fp4": "nf4",
    "nf4 base": "nf4",
    "int4 bnb": "nf4",
    "int4 gptq": "int4",
    "int8 gptq": "int8",
    "int8 bnb": "int8",
    "bnb.int8": "int8",
}


class Row(NamedTuple):
    """One row: what was trained, and apart from it what was measured."""

    id: str
    group: str  # "prime-rl", "other trainers", "vllm"
    program: str
    run: RunSpec
    hardware: Hardware
    shape: ModelShape
    measured_gib: float


def read(path: Path) -> tuple[list[Row], list[tuple[str, str]]]:
    """The rows of a table of memory_dev.csv's columns, and which were left out: id and why."""
    rows: list[Row] = []
    left_out: list[tuple[str, str]] = []
    with open(path, encoding="utf-8", newline="") as file:
        for number, line in enumerate(csv.DictReader(file), start=1):
            id = f"{path.stem}:{number}"
            shape = of_registry(line["model"])
            if line["kind"] != "train":
                continue
            if shape is None:
                left_out.append((id, f"no shape of {line['model']}"))
            elif not line[MEASURED]:
                left_out.append((id, "no peak"))
            else:
                rows.append(_row(id, line, shape))
    return rows, left_out


def _row(id: str, line: Mapping[str, str], shape: ModelShape) -> Row:
    measured_gib = float(line[MEASURED])
    described = {key: value for key, value in line.items() if key not in (MEASURED, "tps", "mfu", "notes")}
    extra = _pairs(described["extra"])
    program = extra.get("trainer", "hf")
    run = _prime_rl(described, extra) if program == "prime-rl" else _recipe(described, extra)
    group = "prime-rl" if program == "prime-rl" else "other trainers"
    return Row(id, group, program, run, _hardware(described), shape, measured_gib)


def _pairs(extra: str) -> dict[str, str]:
    return {key.strip(): value for key, _, value in (part.partition("=") for part in extra.split(";")) if value}


def _hardware(line: Mapping[str, str]) -> Hardware:
    """The GPU by its name in the registry; one that it does not have is of unknown size."""
    words = [word for word in line["gpu"].split() if not word.startswith("HBM")]
    gpus = int(line["n_gpus"])
    try:
        return of_name(f"{gpus}x{'-'.join(words)}")
    except UserError:
        return Hardware(line["gpu"], line["gpu"], gpus, 0.0, 0.0, 0.0, None)


def _degrees(parallelism: str) -> dict[str, int]:
    """ "fsdp32_tp8" -> {"fsdp": 32, "tp": 8}."""
    return {name: int(count) for name, count in re.findall(r"([a-z]+)(\d+)", parallelism)}


def _tokens(said: str) -> int:
    """ "2048" -> 2048, and 512 of "~512(alpaca)"."""
    found = re.search(r"\d+", said)
    if found is None:
        raise ValueError(f"seq_len is {said!r}")
    return int(found[0])


def _spec(name: str, ctx_tokens: int, **parts: object) -> RunSpec:
    return RunSpec(
        run=Run(name=name.split("/")[-1], max_steps=10),
        data=Data(sources=(Source(kind="python-stdlib"),), ctx_tokens=ctx_tokens),
        batch=Batch(),
        **parts,  # type: ignore[arg-type]
    )


def _prime_rl(line: Mapping[str, str], extra: Mapping[str, str]) -> RunSpec:
    degrees, ctx_tokens = _degrees(line["parallelism"]), int(line["seq_len"])
    head = extra.get("head", "")
    tokens, columns = re.search(r"token_chunk(\d+)", head), re.search(r"^vocab_chunk(\d+)", head)
    trainer = Trainer(
        model_name=line["model"],
        ctx_tokens=ctx_tokens,
        attention=line["attention"],
        context_parallel=degrees.get("cp", 1),
        expert_parallel=degrees.get("ep", 1),
        optim_cpu_offload="optim_cpu_offload" in line["optimizer"],
        activation_checkpointing=line["ac"] in ("recompute", "offload"),
        activation_offloading=line["ac"] == "offload",
        compile=line["compile"] == "yes",
        optimization_dtype="float32",
        reduce_dtype="float32",
        optimizer="adamw",
        head_chunk_tokens=int(tokens[1]) if tokens else None,
        head_chunk_vocab=int(columns[1]) if columns else None,
        max_concurrent_runs=max(1, int(extra.get("n_adapters", "0"))),
        fake_data=True,
    )
    micro_batch, gpus = int(line["micro_batch"]), int(line["n_gpus"])
    sequences = int(extra["grad_accum"]) * micro_batch * gpus // degrees.get("cp", 1)
    finetune = Finetune(ctx_tokens=ctx_tokens, micro_batch_sequences=micro_batch, batch_sequences=sequences)
    return _spec(
        line["model"],
        ctx_tokens,
        launch=Launch(generation=_ERAS[extra["era"]]),
        deployment=Deployment(train_gpus=gpus),
        trainer=trainer,
        finetune=finetune if extra["type"] == "sft" else None,
        lora=Lora(rank=int(line["lora_rank"])) if line["lora_rank"] else None,
    )


def _recipe(line: Mapping[str, str], extra: Mapping[str, str]) -> RunSpec:
    degrees, ctx_tokens = _degrees(line["parallelism"]), _tokens(line["seq_len"])
    precision, optimizer = line["precision"], line["optimizer"].lower()
    chunks = re.search(r"token_chunk(\d+)", extra.get("head", ""))
    mixed = precision in ("fp32 master/bf16 compute", "float8")
    recipe = _adapted(line, extra)
    recipe = recipe._replace(
        program=extra["trainer"],
        model_name=line["model"],
        gpus=int(line["n_gpus"]),
        sharding=_sharding(line),
        shards=degrees.get("fsdp", int(line["n_gpus"])) * degrees.get("cp", 1),
        tensor_parallel=degrees.get("tp", 1),
        context_parallel=degrees.get("cp", 1),
        pipeline_parallel=degrees.get("pp", 1),
        ctx_tokens=ctx_tokens,
        micro_batch=int(line["micro_batch"] or 1),
        micro_batches_per_step=int(extra.get("grad_accum", "1")),
        weight_dtype="fp32" if mixed else None if recipe.adapter != "none" else "bf16",
        compute_dtype="float8" if precision == "float8" else "bf16",
        optimizer="adamw-8bit" if "8bit" in optimizer or "8-bit" in optimizer else "adamw",
        optimizer_in_backward=extra.get("opt_in_bwd") == "1",
        optimizer_offload="cpu" in optimizer or "paged" in optimizer,  # paged states lie outside the allocator
        parameter_offload=extra.get("fsdp_cpu_offload") == "1",
        head="token-chunked" if chunks else "full",
        head_chunks=int(chunks[1]) if chunks else None,
        activation_checkpointing="full" if line["ac"] in ("full", "offload", "recompute") else line["ac"],
        activation_offloading=line["ac"] == "offload",
        compile=line["compile"] == "yes",
        attention=line["attention"],
    )
    return _spec(line["model"], ctx_tokens, recipe=recipe)


def _sharding(line: Mapping[str, str]) -> str:
    said = line["parallelism"]
    if said == "device_map" or said.startswith("ddp"):
        return said.rstrip("0123456789")
    named = re.match(r"zero[123]", said)
    return named[0] if named else "none" if int(line["n_gpus"]) == 1 else "fsdp"


def _adapted(line: Mapping[str, str], extra: Mapping[str, str]) -> Recipe:
    """The part of a recipe that says what is trained beside a frozen base."""
    adapter = _ADAPTERS.get(extra.get("type", ""), "lora" if line["lora_rank"] else "none")
    targets = tuple(re.split(r"[,+]", extra["targets"].lower())) if extra.get("targets") else None
    if extra["trainer"] == "qwen-finetune" and adapter == "lora":
        targets = targets or ("c_attn", "c_proj", "w1", "w2")
    return Recipe(
        adapter=adapter,
        adapter_rank=int(line["lora_rank"]) if line["lora_rank"] else None,
        adapter_targets=targets,
        adapter_parameters=int(extra["trainable"]) if "trainable" in extra else None,
        trains_embeddings=extra.get("emb_trainable") == "1",
        quantization=_QUANTIZATIONS.get(line["precision"]),
    )
