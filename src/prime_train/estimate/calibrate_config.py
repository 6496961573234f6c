"""Compares the config of a measured run with the one that its measurements shall calibrate. Pure; reads no file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, NamedTuple

from prime_train.core.errors import ExitCode, UserError
from prime_train.spec import RunSpec
from prime_train.spec.answers import part_of, prime_rl_of

# What the estimate counts in full, so that a measurement carries over: sizes of a batch, of the layout, of an adapter.
_SCALED: dict[str, tuple[str, ...]] = {
    "model": ("lora",),
    "data": ("ctx_tokens",),
    "batch": ("micro_batch", "global_batch", "global_batch_tokens"),
    "parallel": ("processes", "dp_replicate", "dp_shard"),
    "deployment": ("train_gpus", "infer_gpus", "train_nodes"),
    "lora": ("rank", "target_modules"),
    "finetune": ("ctx_tokens", "batch_sequences", "micro_batch_sequences"),
    "trainer": ("ctx_tokens", "dp_replicate", "context_parallel", "expert_parallel", "activation_checkpointing"),
    "recipe": ("gpus", "shards", "replicas", "ctx_tokens", "micro_batch", "micro_batches_per_step", "adapter_rank"),
}
# What changes the memory or the speed by more than sizes do: the ratio of another run does not hold for this one.
_REFUSED: dict[str, tuple[str, ...]] = {
    "model": ("path", "layers", "hidden_size", "heads", "kv_heads", "head_dim", "mlp_size", "compile"),
    "precision": ("compute", "fp8"),
    "trainer": ("model_name", "impl", "attention", "compile", "optimization_dtype", "optimizer", "quantization",
                "optim_cpu_offload", "fsdp_cpu_offload", "activation_offloading"),
    "recipe": ("program", "model_name", "weight_dtype", "compute_dtype", "optimizer", "adapter", "quantization", "head",
               "activation_checkpointing", "sharding", "tensor_parallel", "pipeline_parallel", "compile", "attention"),
}  # fmt: skip


class Difference(NamedTuple):
    """A RunSpec field with the value of the measured run and of this one."""

    field: str
    measured: Any
    here: Any

    def text(self) -> str:
        return f"{self.field} was {self.measured} and is {self.here}"


def scaled_differences(measured: RunSpec, here: RunSpec, source: str) -> tuple[Difference, ...]:
    """What differs and can be scaled. Raises UserError with the fields that differ and cannot."""
    refused = list(_differences(_REFUSED, measured, here))
    if measured.format != here.format:
        refused.insert(0, Difference("the program", measured.format, here.format))
    trained, adapted = prime_rl_of(measured).lora, prime_rl_of(here).lora
    if (trained is None) != (adapted is None):
        refused.append(Difference("lora", _present(trained), _present(adapted)))
    if refused:
        raise UserError(
            what=f"the measured run has another config: {'; '.join(one.text() for one in refused)}",
            where=f"--calibrate {source}",
            why="a measurement is scaled to other sizes of batch, sequence and layout, not to another model or program",
            fix="name a run of this model and program, or leave --calibrate out",
            exit_code=ExitCode.FINDINGS,
        )
    return tuple(_differences(_SCALED, measured, here))


def _present(part: object) -> str:
    return "off" if part is None else "on"


def _differences(fields: dict[str, tuple[str, ...]], measured: RunSpec, here: RunSpec) -> Iterator[Difference]:
    for part, names in fields.items():
        before, after = part_of(measured, part), part_of(here, part)
        if before is None or after is None:
            continue
        for name in names:
            was, value = getattr(before, name, None), getattr(after, name, None)
            if was != value:
                shown = ["on" if is_dataclass(one) else "unset" if one is None else one for one in (was, value)]
                yield Difference(f"{part}.{name}", *shown)
