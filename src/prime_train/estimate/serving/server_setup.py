"""Resolves a RunSpec and a GPU to everything that the memory of a vLLM server depends on. Pure."""

from __future__ import annotations

from itertools import takewhile
from typing import NamedTuple

from prime_train.config.prime_rl.schema import features_of_generation
from prime_train.core.units import GIB
from prime_train.estimate.model.shape import ModelShape
from prime_train.estimate.values import Hardware, Interval
from prime_train.registry.gpus import read_table
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of
from prime_train.spec.prime_rl_parts import Inference

_DTYPE_BYTES = {"float32": 4.0, "float": 4.0}  # every other value of vLLM's --dtype takes two
_LORA_RANK = 16  # vLLM's default of --max-lora-rank
_LORA_SLOTS = 1  # vLLM's default of --max-loras


class ServeSetup(NamedTuple):
    """One vLLM server, seen from one of its GPUs.

    `sequences` and `batched_tokens` are max_num_seqs and max_num_batched_tokens; `ctx_tokens` is max_model_len.
    `quantization` is vLLM's name of the method, "" for none. `lora_slots` is 0 without adapters. `multicast`: GPUs of
    one machine reduce in their switch (NVLink SHARP), for which NCCL keeps buffers. `cache_bytes`: a fixed size of the
    KV cache, 0 for the rest of the fraction.
    """

    shape: ModelShape
    version: str
    gpu_memory_fraction: float
    ctx_tokens: int
    sequences: int
    batched_tokens: int
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    number_bytes: float = 2.0
    quantization: str = ""
    cache_number_bytes: float = 2.0
    block_tokens: int = 16
    eager: bool = False
    lora_slots: int = 0
    lora_rank: int = 0
    multicast: bool = False
    cache_bytes: int = 0

    @property
    def engine(self) -> EngineMemoryRules:
        return engine_of(self.version)

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def expert_gpus(self) -> int:
        """GPUs over which the experts of one layer are spread: all GPUs of a stage.

        Source: vLLM, FusedMoEParallelConfig.make.
        """
        return self.tensor_parallel * self.data_parallel


def default_batch(hardware: Hardware, engine: EngineMemoryRules) -> tuple[int, int]:
    """vLLM's defaults on that GPU: (max_num_seqs, max_num_batched_tokens).

    Source: vLLM, EngineArgs.get_batch_defaults.
    """
    gib = hardware.usable_bytes / GIB
    if gib < table_number("batch", "large_gpu_gib") or "a100" in hardware.id.lower() or "a100" in hardware.name.lower():
        return table_number("batch", "sequences"), table_number("batch", "batched_tokens")
    if gib >= table_number("batch", "huge_gpu_gib"):
        return engine.large_gpu_sequences, engine.huge_gpu_batched_tokens
    return engine.large_gpu_sequences, table_number("batch", "large_gpu_batched_tokens")


def default_setup(shape: ModelShape, hardware: Hardware, version: str = "", ctx_tokens: int = 0) -> ServeSetup:
    """The setup of `vllm serve MODEL` on one GPU with vLLM's defaults. `ctx_tokens` 0 means the model's own."""
    version = version or version_of_generation(None)
    engine = engine_of(version)
    sequences, batched_tokens = default_batch(hardware, engine)
    return ServeSetup(
        shape=shape,
        version=version,
        gpu_memory_fraction=engine.fraction,
        ctx_tokens=ctx_tokens or shape.ctx_tokens or batched_tokens,
        sequences=sequences,
        batched_tokens=batched_tokens,
        quantization=shape.quantization,
        block_tokens=table_number("batch", "mla_block_tokens" if shape.kv_lora_rank else "block_tokens"),
        multicast=_reduces_in_switch(hardware),
    )


def _reduces_in_switch(hardware: Hardware) -> bool:
    """True for data-centre Hopper and Blackwell, not for PCIe cards. Source: NCCL user guide, NCCL_NVLS_ENABLE."""
    return (hardware.compute_capability or (0, 0))[0] in (9, 10) and not hardware.is_card


def serve_setup_of(run: RunSpec, hardware: Hardware, shape: ModelShape, version: str = "") -> ServeSetup:
    """The server that a run starts, with the defaults of its vLLM. `version` overrides the generation's vLLM.

    A run without an inference part gets vLLM's defaults on that GPU.
    """
    parts = prime_rl_of(run)
    generation = parts.launch.generation
    setup = default_setup(shape, hardware, version or version_of_generation(generation))
    inference = run.inference or Inference()
    bytes_of_number = _DTYPE_BYTES.get((inference.dtype or "auto").removeprefix("torch."), 2.0)
    tensor, pipeline = inference.tensor_parallel or 1, inference.pipeline_parallel or 1
    gpus = (parts.deployment.infer_gpus if parts.deployment is not None else None) or 1
    slots, rank = _adapters(run, inference)
    return setup._replace(
        gpu_memory_fraction=inference.gpu_memory_fraction or setup.gpu_memory_fraction,
        ctx_tokens=inference.ctx_tokens or setup.ctx_tokens,
        sequences=inference.max_sequences or setup.sequences,
        batched_tokens=inference.batched_tokens or setup.batched_tokens,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        data_parallel=inference.data_parallel or max(1, gpus // (tensor * pipeline)),
        expert_parallel=bool(inference.expert_parallel),
        number_bytes=bytes_of_number,
        cache_number_bytes=_cache_number_bytes(inference.cache_dtype, bytes_of_number),
        quantization=inference.quantization or shape.quantization,
        eager=bool(inference.enforce_eager),
        lora_slots=slots,
        lora_rank=rank,
        cache_bytes=inference.cache_bytes or 0,
    )


def _cache_number_bytes(dtype: str | None, weight_number_bytes: float) -> float:
    """Bytes of one number of the cache; "auto" uses the type of the weights."""
    if dtype is None or dtype == "auto":
        return weight_number_bytes
    return 1.0 if dtype.startswith("fp8") else _DTYPE_BYTES.get(dtype, 2.0)


def _adapters(run: RunSpec, inference: Inference) -> tuple[int, int]:
    """(slots, rank) that vLLM allocates. prime-rl enables adapters if the trainer trains one."""
    parts = prime_rl_of(run)
    if not inference.enable_lora and parts.lora is None:
        return 0, 0
    trained = parts.lora.rank if parts.lora is not None else None
    return inference.max_loras or _LORA_SLOTS, inference.max_lora_rank or trained or _LORA_RANK


_TABLES = "vllm_memory.toml"
NEWEST = "0.32"  # the version whose source the newest entry was read from


class EngineMemoryRules(NamedTuple):
    """How one version of vLLM divides a GPU. `fraction` is the default of gpu_memory_utilization."""

    version: str
    fraction: float
    graphs_in_budget: bool
    hybrid_cache: bool
    tokens_by_request: bool
    null_blocks: int
    batches_in_flight: int
    large_gpu_sequences: int
    huge_gpu_batched_tokens: int
    counts_others: bool
    source: str


def engine_of(version: str) -> EngineMemoryRules:
    """The entry of a vLLM version: "0.22.0", "0.32.1.dev3". An unreadable version counts as the newest."""
    wanted = _numbers(version) or _numbers(NEWEST)
    rows = [row for row in read_table(_TABLES)["engine"] if _numbers(row["from"]) <= wanted]
    row = {key: value for key, value in rows[-1].items() if key not in ("from", "as_of")}
    return EngineMemoryRules(version=version, **row)


def version_of_generation(generation: str | None) -> str:
    """The vLLM that a prime-rl generation comes with; the newest known one for every other config."""
    return features_of_generation(generation).vllm if generation else NEWEST


def table_interval_bytes(table: str, key: str) -> Interval:
    """An interval in bytes; the registry holds it in GiB."""
    return table_interval(table, key).times(GIB)


def table_interval(table: str, key: str) -> Interval:
    return Interval(*(float(value) for value in read_table(_TABLES)[table][key]))


def table_number(table: str, key: str) -> int:
    return int(read_table(_TABLES)[table][key])


def table_text(table: str, key: str) -> str:
    return str(read_table(_TABLES)[table][key])


def quantized_bytes(method: str) -> float | None:
    """Bytes of one quantised number of a matrix, scales included; None for an unknown method."""
    table = read_table(_TABLES)["quantized"]
    value = table.get(method.lower().replace("-", "_"), table.get(method.lower()))
    return None if value is None else float(value)


def is_at_least(version: str, threshold: str) -> bool:
    return (_numbers(version) or _numbers(NEWEST)) >= _numbers(threshold)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (0, 22, 0); () if there are none."""
    return tuple(map(int, takewhile(str.isdigit, version.strip().lstrip("v").split("."))))
