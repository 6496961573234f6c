"""Reads published tables of measured training speed into the rows of the estimate. Evaluates nothing.

Formats: llm-foundry's benchmark table; the columns of a prime-rl baseline or of another trainer's published table
(kind, model, gpu, n_gpus, parallelism, ..., tps); registry/measured_rows/throughput.csv. The columns identify the
format. `python bench/throughput_rows.py FILE...` writes the rows of FILEs in the last format to stdout.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import row_cells
from row_cells import Mesh, Unreadable, flag, number, text, whole

from prime_train.estimate.hardware import hardware_from_name
from prime_train.estimate.memory.train_setup import Checkpointing
from prime_train.estimate.model import shape as shape_of
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.time.measured_rows import MeasuredRow, row_from_columns
from prime_train.estimate.time.step_flops import Precision, StepSetup
from prime_train.estimate.values import Hardware

Reader = Callable[[Mapping[str, str]], MeasuredRow]
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
    *("parameter_offload", "optimizer_offload", "tp", "cp", "pp", "stages_per_gpu", "async_tp", "power_limited"),
    *("tokens_per_s", "source"),
)
FLAGS = ("reshard", "activation_offload", "parameter_offload", "optimizer_offload", "fused", "async_tp")
# Name, layers, width, heads of llm-foundry's small models. Source: llm-foundry scripts/train/yamls/pretrain.
_SMALL_MPT = {"125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12)}
_MPT_VOCABULARY = 50368
_GPU_IDS = {"H100 96GB HBM2e": "h100-80gb"}  # the same chip with other memory
_RECOMPUTE: dict[str, Checkpointing] = {
    "recompute": "full",
    "offload": "full",
    "full": "full",
    "selective": "selective",
    "yes": "full",
    "true": "full",
}
_HBM2E_BYTES_PER_S = 2.4e12  # the H100 of torchtitan's table: benchmarks/llama3_h100_202412
# The date of prime-rl's code behind a baseline, by the letter in the tables. 15 January has its own letter, because
# later code with the same config keys runs adapters of experts on Blackwell differently.
_GENERATIONS = {"J": "2026-01-15", "F": "2026-02", "M": "2026-05", "U": "2026-06"}


class Read(NamedTuple):
    """One line of a table: its id ("throughput_mpt:12"), its row or the reason for none, whether speed was measured."""

    id: str
    row: MeasuredRow | None
    why: str
    was_measured: bool = True


def read(path: Path) -> list[Read]:
    """Every line of a file. Raises Unreadable if the file is not a table of a known format."""
    found: list[Read] = []
    of_line: Reader | None = None
    for id, line in row_cells.lines(path):
        of_line = of_line or _form(set(line))
        try:
            row = of_line(line)
        except ValueError as error:
            found.append(Read(id, None, str(error)))
            continue
        found.append(Read(id, row, "" if row.tokens_per_s else "no speed was measured", row.tokens_per_s > 0))
    return found


def _form(names: set[str]) -> Reader:
    if {"Model", "SeqLen", "nGPU", "GPU"} <= names:
        return of_foundry
    if {"local_batch", "gpu_type", "tps_per_gpu"} <= names:
        return of_torchtitan
    if {"model", "n_gpus", "seq_len"} <= names:
        return of_baseline
    if set(COLUMNS) <= names:
        return row_from_columns
    raise Unreadable(f"columns {', '.join(sorted(names))} do not match a known format")


def of_foundry(line: Mapping[str, str]) -> MeasuredRow:
    """A line of llm-foundry scripts/train/benchmarking: MPT, ALiBi or learned positions, Triton flash attention."""
    gpus, ctx_tokens = whole(line, "nGPU"), whole(line, "SeqLen")
    of_each, of_all = number(line, "Tps_gpu"), number(line, "Tps")
    precision = text(line, "Precision").lower()
    return MeasuredRow(
        StepSetup(
            shape=_mpt(text(line, "Model")),
            ctx_tokens=ctx_tokens,
            micro_batch_tokens=whole(line, "MicroBatch", 1) * ctx_tokens,
            micro_batches=whole(line, "GradAccum", 1),
            dp_shard=gpus,
            trainer="llm-foundry",
            recompute="full" if flag(line, "ActCkpt") else "none",
            reshard=text(line, "Sharding").upper() != "SHARD_GRAD_OP",
            activation_offload=flag(line, "ActOffload"),
            kernel="triton",
            precision="fp8" if "fp8" in precision else "bf16",
        ),
        _gpu(text(line, "GPU").replace("_", "-"), gpus),
        of_each * gpus if of_each else of_all or 0.0,
        "llm-foundry scripts/train/benchmarking/README.md",
    )


def _mpt(cell: str) -> ModelShape:
    name = cell.lower().removeprefix("mosaicml/").removeprefix("mpt-")
    shape = shape_of.shape_from_registry(f"mosaicml/mpt-{name}")
    if shape is not None:
        return shape
    if name not in _SMALL_MPT:
        raise Unreadable(f"Model {cell!r} has no shape in the registry")
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
    """A line with one setting per column; `extra` has key=value pairs, `parallelism` has parts like fsdp8_cp2."""
    if not (text(line, "kind").lower() or "train").startswith("train"):
        raise Unreadable(f"kind is {line['kind']!r}: only trainings have a speed")
    extra = row_cells.pairs(line.get("extra", ""))
    trainer, gpus, ctx_tokens = extra.get("trainer", "hf").lower(), whole(line, "n_gpus", 1), whole(line, "seq_len")
    mesh, era = row_cells.mesh(line.get("parallelism", ""), gpus), extra.get("era", "").upper()
    data_parallel = max(1, gpus // (mesh.tp * mesh.cp * mesh.pp))
    copies = _copies(line.get("parallelism", ""), mesh, data_parallel)
    offloads = flag(extra, "fsdp_cpu_offload")
    setup = StepSetup(
        shape=row_cells.model(text(line, "model")),
        ctx_tokens=ctx_tokens,
        micro_batch_tokens=whole(line, "micro_batch", 1) * ctx_tokens,
        micro_batches=whole(extra, "grad_accum", 1),
        dp_shard=max(1, data_parallel // copies),
        dp_replicate=copies,
        tp=mesh.tp,
        cp=mesh.cp,
        pp=mesh.pp,
        ep=mesh.ep,
        trainer=trainer,
        generation=_GENERATIONS.get(era, era),
        objective="rl" if extra.get("type") == "rl" else "sft" if trainer == "prime-rl" else "pretrain",
        recompute=_recompute(line.get("ac", "")),
        activation_offload="offload" in line.get("ac", "").lower(),
        parameter_offload=offloads,
        # prime-rl keeps the optimizer's states on the CPU by default from June 2026 on.
        optimizer_offload=offloads or "offload" in line.get("optimizer", "") or era == "U",
    )
    return MeasuredRow(
        _with_kernels(setup, line, extra),
        _gpu(text(line, "gpu"), gpus),
        number(line, "tps") or 0.0,
        line.get("source", ""),
    )


# torchtitan's names of models, and of float8 with one scale per tensor, per row or per block of 32.
_TITAN_MODELS = {
    "Llama3.1-8B": "meta-llama/Llama-3.1-8B",
    "Llama3-8B": "meta-llama/Llama-3.1-8B",
    "Llama3.1-70B": "meta-llama/Llama-3.1-70B",
    "Llama3-70B": "meta-llama/Llama-3.1-70B",
    "Llama3.1-405B": "meta-llama/Llama-3.1-405B",
    "Llama2-13B": "meta-llama/Llama-2-13b-hf",
    "Llama2-70B": "meta-llama/Llama-2-70b-hf",
}
_TITAN_PRECISIONS: dict[str, Precision] = {
    "no": "bf16",
    "float8": "fp8",
    "float8-tensorwise": "fp8",
    "float8-rowwise": "fp8_rowwise",
    "mxfp8_cublas": "mxfp8",
    "mxfp8_cublas_rceil": "mxfp8",
}


def of_torchtitan(line: Mapping[str, str]) -> MeasuredRow:
    """A line of torchtitan's published tables. A pipeline splits the local batch into one micro-batch per stage, its
    default of 2024; an interleaved one has two stages on each GPU. Tables without a word on torch.compile (2024-08)
    have the speed of fused kernels."""
    gpus, ctx_tokens = whole(line, "gpus"), whole(line, "seq")
    sizes = row_cells.degrees(line["parallelism"])
    tp, cp, pp = (sizes.get(name, 1) for name in ("tp", "cp", "pp"))
    sequences, name, precision = whole(line, "local_batch"), line["gpu_type"], line["fp8"]
    model = _TITAN_MODELS.get(line["model"].partition(" (")[0], "")
    shape = shape_of.shape_from_registry(model)
    if shape is None or precision not in _TITAN_PRECISIONS:
        raise Unreadable(f"{line['model']} with {precision} is not in the tables of this reader")
    recompute = text(line, "ac").lower()
    return MeasuredRow(
        StepSetup(
            shape=shape,
            ctx_tokens=ctx_tokens,
            micro_batch_tokens=sequences * ctx_tokens // pp,
            micro_batches=pp,
            dp_shard=gpus // (tp * cp * pp),
            tp=tp,
            cp=cp,
            pp=pp,
            stages_per_gpu=2 if "interleaved" in line["parallelism"].lower() else 1,
            async_tp="asynctp" in line["parallelism"].lower(),
            trainer="torchtitan",
            recompute="full" if recompute == "full" else "selective" if recompute else "none",
            reshard=pp == 1,
            kernel="sdpa",
            fused=line["compile"] != "no",
            precision=_TITAN_PRECISIONS[precision],
        ),
        _titan_gpu(name, gpus),
        (number(line, "tps_per_gpu") or 0.0) * gpus,
        line["source"],
    )


def _titan_gpu(name: str, gpus: int) -> Hardware:
    """H100 with HBM2e at 500 W and B200 with a lower limit are known chips whose power is limited."""
    known = {"H100-96GB-HBM2e-500W": "h100-80gb", "B200-power-limited": "b200"}.get(name)
    return hardware_from_name(f"{gpus}x{known or name.lower()}")._replace(power_limited=known is not None)


def _with_kernels(setup: StepSetup, line: Mapping[str, str], extra: Mapping[str, str]) -> StepSetup:
    return setup._replace(
        lora_rank=int(number(line, "lora_rank") or 0),
        head=_head(extra.get("head", "full_logits")),  # type: ignore[arg-type]
        kernel=_kernel(line.get("attention", "")),  # type: ignore[arg-type]
        fused=flag(line, "compile"),
        precision="fp8" if re.search("float8|fp8", line.get("precision", "").lower()) else "bf16",
    )


def _copies(parallelism: str, mesh: Mesh, data_parallel: int) -> int:
    """The number of full copies of the weights: one per GPU for ddp, the given number for hsdp."""
    if re.match(r"d?dp\d*(_|$)", parallelism.lower()):
        return data_parallel
    return mesh.replicas or 1 if "hsdp" in parallelism.lower() else 1


def _head(name: str) -> str:
    if name.startswith("token_chunk"):
        return "tiled" if "vocab_chunk" in name else "token_chunked"
    return "vocab_chunked" if name.startswith("vocab_chunk") else "full"


def _kernel(name: str) -> str:
    match = re.search(r"(?:flash_attention_|flash-?|fa)(\d)", name.lower())
    return f"fa{match[1]}" if match and match[1] in "234" else "sdpa"


def _recompute(cell: str) -> Checkpointing:
    name = cell.lower()
    if name in ("", "none", "no", "false", "0"):
        return "none"
    kind = next((kind for start, kind in _RECOMPUTE.items() if name.startswith(start)), None)
    if kind is None:
        raise Unreadable(f"ac is {cell!r}: none, {', '.join(_RECOMPUTE)}")
    return kind


def _gpu(name: str, gpus: int) -> Hardware:
    """The GPU by its name in tables, else by a name of the registry ("A100-80GB", "RTX 3090")."""
    hardware = row_cells.hardware(_GPU_IDS.get(name, name), gpus)
    if not hardware.peak_flops_bf16:
        raise Unreadable(f"GPU {name!r} is not in the registry, so its peak is not known")
    return hardware._replace(bandwidth_bytes_per_s=_HBM2E_BYTES_PER_S) if "HBM2e" in name else hardware


def single_rows() -> tuple[MeasuredRow, ...]:
    """Two published trainings of programs that nothing was fitted to.

    llm.c, GPT-2 124M: 10 B tokens in about 90 minutes on 8 A100 of 80 GB (karpathy/llm.c discussion 481).
    nanochat, d24: 16,704 steps of 524,288 tokens in 10,949 s on 8 H100 (nanochat dev/LEADERBOARD.md, run 1); three of
    four layers see 1,024 tokens.
    """
    gpt2 = ModelShape(
        "gpt2", 50304, 12, 768, 12, 12, 64, 3072, 124_475_904, True, "llm.c", gated_mlp=False, dense_layers=12
    )
    d24 = ModelShape(
        name="nanochat-d24",
        vocab_size=32768,
        layers=24,
        hidden_size=1536,
        heads=12,
        kv_heads=12,
        head_dim=128,
        mlp_size=6144,
        parameters=1_384_120_320,
        tie_embeddings=False,
        source="nanochat nanochat/gpt.py@348fbb3",
        gated_mlp=False,
        qk_norm=True,
        sliding_window=1024,
        sliding_layers=18,
        dense_layers=24,
    )
    one = StepSetup(
        gpt2, 1024, 64 * 1024, dp_replicate=8, trainer="llm.c", recompute="none", head="in_place", kernel="fa2"
    )
    two = one._replace(shape=d24, ctx_tokens=2048, micro_batch_tokens=16 * 2048, micro_batches=2, trainer="nanochat")
    two = two._replace(head="full", kernel="fa3")
    return (
        MeasuredRow(one, hardware_from_name("8xa100-80gb"), 10e9 / (90 * 60), "karpathy/llm.c discussion 481"),
        MeasuredRow(
            two, hardware_from_name("8xh100-80gb"), 16704 * 524288 / 10949.5, "nanochat dev/LEADERBOARD.md, run 1"
        ),
    )


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
        "power_limited": "yes" if row.hardware.power_limited else "no",
        "tokens_per_s": f"{row.tokens_per_s:g}",
        "source": row.source,
    }


def main() -> None:
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for path in sys.argv[1:]:
        lines = read(Path(path))
        for row in (each.row for each in lines if each.row and each.was_measured):
            if shape_of.shape_from_registry(row.setup.shape.name) and row.setup.ep == row.setup.dp_replicate == 1:
                writer.writerow(columns_of(row))
        for each in lines:
            if each.why:
                print(f"{each.id}: {each.why}", file=sys.stderr)


if __name__ == "__main__":
    main()
