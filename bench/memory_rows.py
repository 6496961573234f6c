"""Turns a row of measured memory into the RunSpec, hardware and model that a user would have. Never measures.

All columns except the measured ones are used, and the result goes through the code of `estimate`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import row_cells
from row_cells import Mesh, Unreadable, flag, number, text, whole

from prime_train.config.prime_rl.schema import generation_before, generations, months, newest
from prime_train.estimate.memory.setup_from_recipe import setup_of_recipe
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.values import Hardware
from prime_train.spec import Batch, Data, Run, RunSpec, Source
from prime_train.spec.prime_rl_parts import Deployment, Finetune, LaunchPart, Lora, PrimeRl, Recipe, Trainer

DEVELOPMENT = Path(__file__).resolve().parent / "anchors" / "memory_rows.csv"  # each row names its source
TRAINERS = DEVELOPMENT.with_name("memory_rows_hf.csv")  # transformers' Trainer: plain, fused kernels, Liger; PEFT
SCRIPTS = DEVELOPMENT.with_name("memory_rows_scripts.csv")  # figures beside scripts and configs: litgpt, ms-swift
TABLES = (DEVELOPMENT, TRAINERS, SCRIPTS)
MEASURED = "measured_peak_gib_per_gpu"
SERVING = ("vllm", "inference", "serve", "serving")
_UNSEEN = (MEASURED, "kv_tokens", "tps", "mfu", "notes")
# Pages that were measured with a version of the program that is not the newest: the version that the page names.
_OLD_PAGES = {
    "modelscope/ms-swift docs/source_en/LLM/Benchmark.md": "2024-06",
    "Lightning-AI/litgpt tutorials/resource-tables.md": "0.1",
    "pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md": "2024-12",
}
_ALLOCATED = ("hf", "litgpt")  # programs whose rows have the allocated memory, if their notes name no figure
_ERAS = {"J": "2026-01", "F": "2026-02", "M": "2026-05", "U": "2026-06", "A": "2026-08"}
_ADAPTERS = {
    "adapter": "adapter",
    "adapter_v2": "adapter-v2",
    "lora": "lora",
    "qlora": "lora",
    "dora": "dora",
    "full": "none",
}
_OPTIMIZERS = ("sgd", "muon", "lion", "adafactor")
_MIXED = ("master", "mixed", "amp", "float8", "fp8")  # weights in fp32 beside products in fewer bits
_FULL_PRECISION = ("fp32", "float32", "32-true", "32", "tf32")


def fitted_rows() -> list[Row]:
    """The rows that the registry is fitted to."""
    return [row for table in TABLES for row in read(table)[0] if row.is_exact]


class Row(NamedTuple):
    """One row: the training, and separately the measurements; None if the table has no value.

    `source` is the table that the row is from: a page, a folder of results, or a commit of a project's benchmarks.
    `figure` says which memory was measured: "allocated", "reserved" or "nvidia-smi". `is_exact`: length and settings
    are published, not only a limit of the length.
    """

    id: str
    group: str  # "prime-rl", "other trainers"
    program: str
    run: RunSpec
    hardware: Hardware
    shape: ModelShape
    measured_gib: float | None
    source: str = ""
    figure: str = "reserved"
    ran: bool = True
    is_exact: bool = True
    shown_gib: float | None = None  # by nvidia-smi, beside the measured figure


def read(path: Path) -> tuple[list[Row], list[tuple[str, str]]]:
    """The trainings of a table with memory_dev.csv's columns, and the unreadable rows: id and reason."""
    rows: list[Row] = []
    left_out: list[tuple[str, str]] = []
    for id, line in row_cells.lines(path):
        kind = text(line, "kind").lower() or "train"
        if kind in SERVING:
            continue
        try:
            if not kind.startswith("train"):
                raise Unreadable(f"kind is {kind!r}: train, or one of {', '.join(SERVING)}")
            rows.append(_row(id, line))
        except Unreadable as error:
            left_out.append((id, str(error)))
    return rows, left_out


def _row(id: str, line: Mapping[str, str]) -> Row:
    measured_gib = number(line, MEASURED)
    described = {key: value for key, value in line.items() if key not in _UNSEEN}
    shape = row_cells.model(text(described, "model"))
    described["model"] = shape.name
    extra = row_cells.pairs(described.get("extra", ""))
    program = extra.get("trainer", "hf").lower()
    gpus = whole(described, "n_gpus", 1)
    mesh = row_cells.mesh(described.get("parallelism", ""), gpus)
    run = _prime_rl(described, extra, mesh) if program == "prime-rl" else _recipe(described, extra, mesh)
    source = source_of(line.get("source", ""))
    if source in _OLD_PAGES and run.recipe is not None:
        of_page = run.recipe._replace(version=_OLD_PAGES[source])
        run = replace(run, recipe=of_page)
        program = setup_of_recipe(of_page, row_cells.hardware("", gpus), shape).program
    if "fms-acceleration" in source and run.recipe is not None and run.recipe.quantization:
        # its trainer is TRL's, which casts embedding and head back to 16 bits (peft_module_casting_to_bf16)
        run = replace(run, recipe=run.recipe._replace(weight_dtype="bf16"))
    group = "prime-rl" if program == "prime-rl" else "other trainers"
    notes, trust = line.get("notes", "").lower(), line.get("trust", "")
    if any(word in trust for word in ("inconsistent", "guessed", "bound")) and line.get("outcome", "") != "OOM":
        raise Unreadable(f"no measurement of these settings: {trust}")
    shown = re.search(r"nvidia-smi (\d+) mib", notes)
    return Row(
        id,
        group,
        program,
        run,
        row_cells.hardware(text(described, "gpu"), gpus),
        shape,
        measured_gib or None,
        source=source,
        figure=_figure(program, notes),
        ran=line.get("outcome", "").lower() != "oom",
        is_exact="cap" not in trust,
        shown_gib=int(shown[1]) / 1024 if shown else None,
    )


def source_of(cell: str) -> str:
    """Example: "github:pytorch/torchtune:README.md" -> "pytorch/torchtune README.md".

    Results of one benchmark are one table: their folder. prime-rl measures them anew in some commits: one table each.
    """
    repository, _, path = cell.removeprefix("github:").partition(":")
    path, _, commit = path.partition("@")
    if not path.endswith((".md", ".rst")):
        path = "/".join(path.split("/")[:2])
    return f"{repository} {path}" + (f" {commit[:9]}" if "prime-rl" in repository and commit else "")


def _figure(program: str, notes: str) -> str:
    """Which memory a row has, by its notes, or else by its program."""
    if program == "peft":
        # What it reserves counts as what is allocated: its loop empties the allocator's cache every ten steps, so the
        # figure holds little more than one peak. Source: method_comparison/MetaMathQA/run.py of huggingface/peft.
        return "allocated"
    named = [name for name in ("allocated", "reserved", "nvidia-smi") if name in notes]
    return named[0] if named else "allocated" if program in _ALLOCATED else "reserved"


def _spec(name: str, ctx_tokens: int, **parts: object) -> RunSpec:
    return RunSpec(
        run=Run(name=name.split("/")[-1], max_steps=10),
        data=Data(sources=(Source(kind="python-stdlib"),), ctx_tokens=ctx_tokens),
        batch=Batch(),
        **parts,  # type: ignore[arg-type]
    )


def _prime_rl(line: Mapping[str, str], extra: Mapping[str, str], mesh: Mesh) -> RunSpec:
    micro_batch, gpus, ctx_tokens = whole(line, "micro_batch", 1), whole(line, "n_gpus", 1), whole(line, "seq_len")
    sequences = whole(extra, "grad_accum", 2) * micro_batch * max(1, gpus // (mesh.cp * mesh.tp))
    finetune = Finetune(ctx_tokens=ctx_tokens, micro_batch_sequences=micro_batch, batch_sequences=sequences)
    rank = number(line, "lora_rank")
    objective = extra.get("type", "rl").lower()
    if objective not in ("rl", "sft", "lora"):
        raise Unreadable(f"type is {objective!r}: rl or sft in a row of prime-rl")
    return _spec(
        line["model"],
        ctx_tokens,
        format="prime-rl",
        prime_rl=PrimeRl(
            launch=_launch(_era(extra.get("era", ""))),
            deployment=Deployment(train_gpus=gpus),
            trainer=_prime_rl_trainer(line, extra, mesh),
            finetune=finetune if objective == "sft" else None,
            lora=Lora(rank=int(rank)) if rank else None,
        ),
    )


def _launch(month: str) -> LaunchPart:
    """What [prime_train] of a file sets: the generation, and the month in it."""
    return LaunchPart(generation=generation_before(month, generations()), month=month)


def _era(cell: str) -> str:
    """Example: "F" or "2026-02" -> "2026-02"; the newest era for an empty cell."""
    if re.fullmatch(r"20\d\d-\d\d.*", cell):
        if cell[:7] not in months():
            raise Unreadable(f"era is {cell!r}: [prime_train] names a month from {months()[0]} to {months()[-1]}")
        return cell[:7]
    if cell and cell.upper() not in _ERAS:
        raise Unreadable(f"era is {cell!r}: a month like 2026-02, or one of {', '.join(_ERAS)}")
    return _ERAS.get(cell.upper(), newest())


def _prime_rl_trainer(line: Mapping[str, str], extra: Mapping[str, str], mesh: Mesh) -> Trainer:
    head, optimizer = extra.get("head", ""), line.get("optimizer", "").lower()
    tokens, columns = re.search(r"token_chunk(\d+)", head), re.search(r"^vocab_chunk(\d+)", head)
    checkpointing, offloads = _checkpointing(line)
    dtype = "bfloat16" if _weight_dtype(line.get("precision", "") or "fp32") == "bf16" else "float32"
    return Trainer(
        model_name=line["model"],
        ctx_tokens=whole(line, "seq_len"),
        attention=text(line, "attention"),
        context_parallel=mesh.cp,
        expert_parallel=mesh.ep,
        tensor_parallel=mesh.tp,
        dp_replicate=mesh.replicas if "hsdp" in line.get("parallelism", "").lower() else 1,
        optim_cpu_offload="optim_cpu_offload" in optimizer,
        fsdp_cpu_offload="fsdp_cpu_offload" in optimizer or flag(extra, "fsdp_cpu_offload"),
        activation_checkpointing=checkpointing != "none",
        checkpointing_mode=checkpointing if checkpointing != "none" else None,
        activation_offloading=offloads,
        compile=flag(line, "compile"),
        optimization_dtype=dtype,
        reduce_dtype="float32",
        optimizer=next((name for name in ("sign_sgd", "muon", "sgd") if name in optimizer), "adamw"),
        head_chunk_tokens=int(tokens[1]) if tokens else None,
        head_chunk_vocab=int(columns[1]) if columns else None,
        max_concurrent_runs=max(1, int(number(extra, "n_adapters") or 1)),
        fake_data=True,
    )


def _checkpointing(line: Mapping[str, str]) -> tuple[str, bool]:
    """("none", "selective" or "full"; whether activations are offloaded to the host)."""
    cell = line.get("ac", "").lower()
    offloads = "offload" in cell
    if cell.startswith("selective"):
        return "selective", offloads
    if offloads or cell.startswith(("full", "recompute")) or cell in ("yes", "true", "1", "on"):
        return "full", offloads
    if text(line, "ac") == "" or cell in ("no", "false", "0", "off"):
        return "none", False
    raise Unreadable(f"ac is {cell!r}: none, selective, full, recompute or offload")


def _weight_dtype(precision: str) -> str:
    """The type of trained weights: "fp32" for a master copy or mixed precision, else "bf16"."""
    cell = precision.lower()
    return "fp32" if cell in _FULL_PRECISION or any(word in cell for word in _MIXED) else "bf16"


def _compute_dtype(precision: str) -> str:
    cell = precision.lower()
    if "float8" in cell or "fp8" in cell:
        return "float8"
    if cell in _FULL_PRECISION:
        return "fp32"
    return "fp16" if re.search(r"(?<!b)(fp|float|^)16", cell) and "bf16" not in cell else "bf16"


def _recipe(line: Mapping[str, str], extra: Mapping[str, str], mesh: Mesh) -> RunSpec:
    ctx_tokens, gpus = whole(line, "seq_len"), whole(line, "n_gpus", 1)
    precision, checkpointing = text(line, "precision"), _checkpointing(line)
    recipe = _with_optimizer(_with_head(_adapted(line, extra), extra), line, extra)
    mixed = _weight_dtype(precision) == "fp32"
    recipe = recipe._replace(
        program=extra.get("trainer", "hf").lower(),
        model_name=line["model"],
        gpus=gpus,
        sharding=_sharding(line, mesh),
        shards=mesh.shards or max(1, gpus // (mesh.tp * mesh.pp)),
        replicas=mesh.replicas,
        shards_ends=flag(extra, "ends_apart") or None,
        tensor_parallel=mesh.tp,
        context_parallel=mesh.cp,
        expert_parallel=mesh.ep,
        pipeline_parallel=mesh.pp,
        ctx_tokens=ctx_tokens,
        micro_batch=whole(line, "micro_batch", 1),
        micro_batches_per_step=whole(extra, "grad_accum", 1),
        weight_dtype="fp32" if mixed else None if recipe.adapter != "none" else "bf16",
        compute_dtype=_compute_dtype(precision),
        activation_checkpointing=checkpointing[0],
        activation_offloading=checkpointing[1] or flag(extra, "act_offload"),
        compile=flag(line, "compile"),
        attention=text(line, "attention"),
    )
    return _spec(line["model"], ctx_tokens, recipe=recipe, format="recipe")


def _with_optimizer(recipe: Recipe, line: Mapping[str, str], extra: Mapping[str, str]) -> Recipe:
    optimizer, parallelism = line.get("optimizer", "").lower(), line.get("parallelism", "").lower()
    eight_bit = "8bit" in optimizer or "8-bit" in optimizer
    states = next((name for name in ("fp32", "bf16") if name in optimizer), None)
    to_host = "offload" in parallelism
    return recipe._replace(
        optimizer="adamw-8bit" if eight_bit else next((name for name in _OPTIMIZERS if name in optimizer), "adamw"),
        optimizer_state_dtype=states,
        optimizer_in_backward=flag(extra, "opt_in_bwd"),
        # paged states are outside the allocator
        optimizer_offload="cpu" in optimizer or "offload" in optimizer or "paged" in optimizer or to_host,
        parameter_offload=flag(extra, "fsdp_cpu_offload"),
    )


def _with_head(recipe: Recipe, extra: Mapping[str, str]) -> Recipe:
    """Examples: "token_chunk8" is eight chunks of the tokens, "vocab_chunk2048" 2048 columns at a time."""
    cell = extra.get("head", "").lower()
    tokens, columns = re.search(r"token_chunk(\d+)", cell), re.search(r"vocab_chunk(\d+)", cell)
    if cell in ("liger", "cce") or cell.startswith("fused_loss"):
        return recipe._replace(head=cell.replace("_", "-"))
    if tokens:
        return recipe._replace(head="token-chunked", head_chunks=int(tokens[1]))
    if columns:
        return recipe._replace(head="vocab-chunked", head_chunk_vocab=int(columns[1]))
    is_chunked = any(word in cell for word in ("chunk", "fused", "liger"))
    return recipe._replace(head="token-chunked" if is_chunked else "full")


def _sharding(line: Mapping[str, str], mesh: Mesh) -> str:
    cell, gpus = line.get("parallelism", "").lower(), whole(line, "n_gpus", 1)
    if cell.startswith("device_map"):
        return "device_map"
    named = re.match(r"zero[-_]?([123])", cell)
    if named:
        return f"zero{named[1]}"
    if re.match(r"d?dp\d*(_tp|_pp|_ep|_cp|$)", cell):
        return "ddp"
    return "none" if gpus == mesh.tp * mesh.pp else "fsdp"


def _adapted(line: Mapping[str, str], extra: Mapping[str, str]) -> Recipe:
    """The part of a recipe that describes the adapter of a frozen base model."""
    rank = number(line, "lora_rank")
    adapter = _ADAPTERS.get(extra.get("type", "").lower(), "lora" if rank else "none")
    targets = tuple(re.split(r"[,+]", extra["targets"].lower())) if extra.get("targets") else None
    if extra.get("trainer", "").lower() == "qwen-finetune" and adapter == "lora":
        targets = targets or ("c_attn", "c_proj", "w1", "w2")
    trainable = number(extra, "trainable")
    return Recipe(
        adapter=adapter,
        adapter_rank=int(rank) if rank else None,
        adapter_targets=targets,
        adapter_parameters=None if trainable is None else int(trainable),
        trains_embeddings=flag(extra, "emb_trainable"),
        quantization=_quantization(text(line, "precision")) or _quantization(extra.get("quant", "")),
    )


def _quantization(cell: str) -> str | None:
    """The quantisation of the frozen base, such as "bnb.nf4-dq", "int4 gptq", "awq"; None if there is none."""
    cell = cell.lower()
    if "nf4" in cell or "fp4" in cell or ("int4" in cell and "bnb" in cell):
        return "nf4-dq" if "dq" in cell else "nf4"
    if re.search(r"int4|4[- ]?bit|awq|gptq", cell) and not re.search(r"int8|8[- ]?bit", cell):
        return "int4"
    return "int8" if re.search(r"int8|8[- ]?bit", cell) else None
