"""Everything that the memory of a vLLM server depends on, resolved from a RunSpec and a GPU. Pure."""

from __future__ import annotations

from typing import NamedTuple

from prime_train.estimate.inference_engine import Engine, engine_of, number, version_of_generation
from prime_train.estimate.shape import ModelShape
from prime_train.estimate.values import Hardware
from prime_train.spec import RunSpec
from prime_train.spec.elsewhere import Inference
from prime_train.units import GIB

_DTYPE_BYTES = {"float32": 4.0, "float": 4.0}  # every other dtype of vLLM's --dtype takes two
_LORA_RANK = 16  # --max-lora-rank of vLLM where it is not set
_LORA_SLOTS = 1  # --max-loras


class ServeSetup(NamedTuple):
    """One vLLM server, seen from one of its GPUs.

    `sequences` and `batched_tokens` are max_num_seqs and max_num_batched_tokens; `ctx_tokens` is max_model_len;
    `cache_number_bytes` is what one number of the KV cache takes. `quantization` is the method as vLLM calls it, ""
    for none. `lora_slots` is 0 without adapters.
    `multicast`: GPUs of one machine reduce in their switch (NVLink SHARP), for which NCCL keeps buffers.
    `resident_bytes` is what other processes hold on the GPU when vLLM starts. `cache_bytes` is what the KV cache was
    given in place of the rest of the fraction, 0 where it gets that.
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
    vision_replicated: bool = False
    multicast: bool = False
    resident_bytes: float = 0.0
    cache_bytes: int = 0

    @property
    def engine(self) -> Engine:
        return engine_of(self.version)

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def expert_gpus(self) -> int:
        """GPUs that the experts of one layer are spread over: all of a stage, whether whole or cut.
        Source: vLLM, FusedMoEParallelConfig.make."""
        return self.tensor_parallel * self.data_parallel


def default_batch(hardware: Hardware, engine: Engine) -> tuple[int, int]:
    """(max_num_seqs, max_num_batched_tokens) of a server on that GPU where nobody sets them.
    Source: vLLM, EngineArgs.get_batch_defaults."""
    gib = hardware.usable_bytes / GIB
    if gib < number("batch", "large_gpu_gib") or "a100" in hardware.id.lower() or "a100" in hardware.name.lower():
        return number("batch", "sequences"), number("batch", "batched_tokens")
    if gib >= number("batch", "huge_gpu_gib"):
        return engine.large_gpu_sequences, engine.huge_gpu_batched_tokens
    return engine.large_gpu_sequences, number("batch", "large_gpu_batched_tokens")


def plain_setup(shape: ModelShape, hardware: Hardware, version: str = "", ctx_tokens: int = 0) -> ServeSetup:
    """What `vllm serve MODEL` does on one such GPU, nothing else said. `ctx_tokens` 0 is the model's own."""
    version = version or version_of_generation(None)
    engine = engine_of(version)
    sequences, batched_tokens = default_batch(hardware, engine)
    latent = shape.kv_lora_rank > 0
    return ServeSetup(
        shape=shape,
        version=version,
        gpu_memory_fraction=engine.fraction,
        ctx_tokens=ctx_tokens or shape.ctx_tokens or batched_tokens,
        sequences=sequences,
        batched_tokens=batched_tokens,
        quantization=shape.quantization,
        block_tokens=number("batch", "mla_block_tokens" if latent else "block_tokens"),
        multicast=_reduces_in_switch(hardware),
    )


def _reduces_in_switch(hardware: Hardware) -> bool:
    """Hopper and Blackwell of the data centre do; cards on PCIe do not. Source: NCCL user guide, NCCL_NVLS_ENABLE."""
    is_card = "pcie" in hardware.id or "nvl" in hardware.id
    return hardware.compute_capability is not None and hardware.compute_capability[0] in (9, 10) and not is_card


def serve_setup_of(run: RunSpec, hardware: Hardware, shape: ModelShape, version: str = "") -> ServeSetup:
    """The server that a run starts, the defaults of its vLLM filled in. `version` beats that of the run's generation.

    A run without an inference part is taken for a plain server: what it would be on that GPU.
    """
    generation = run.launch.generation if run.launch is not None else None
    setup = plain_setup(shape, hardware, version or version_of_generation(generation))
    asked = run.inference or Inference()
    bytes_of_number = _DTYPE_BYTES.get((asked.dtype or "auto").removeprefix("torch."), 2.0)
    tensor, pipeline = asked.tensor_parallel or 1, asked.pipeline_parallel or 1
    slots, rank = _adapters(run, asked)
    return setup._replace(
        gpu_memory_fraction=asked.gpu_memory_fraction or setup.gpu_memory_fraction,
        ctx_tokens=asked.ctx_tokens or setup.ctx_tokens,
        sequences=asked.max_sequences or setup.sequences,
        batched_tokens=asked.batched_tokens or setup.batched_tokens,
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        data_parallel=asked.data_parallel or _data_parallel(run, tensor * pipeline),
        expert_parallel=bool(asked.expert_parallel),
        number_bytes=bytes_of_number,
        cache_number_bytes=_cache_number_bytes(asked.cache_dtype, bytes_of_number),
        quantization=asked.quantization or shape.quantization,
        eager=bool(asked.enforce_eager),
        lora_slots=slots,
        lora_rank=rank,
        cache_bytes=asked.cache_bytes or 0,
    )


def _cache_number_bytes(dtype: str | None, weight_number_bytes: float) -> float:
    """Bytes of one number of the cache: "auto" is that of the weights."""
    if dtype is None or dtype == "auto":
        return weight_number_bytes
    return 1.0 if dtype.startswith("fp8") else _DTYPE_BYTES.get(dtype, 2.0)


def _data_parallel(run: RunSpec, gpus_per_replica: int) -> int:
    gpus = run.deployment.infer_gpus if run.deployment is not None else None
    return max(1, (gpus or 1) // gpus_per_replica)


def _adapters(run: RunSpec, asked: Inference) -> tuple[int, int]:
    """(slots, rank) that vLLM keeps room for. prime-rl switches adapters on where the trainer trains one."""
    if not asked.enable_lora and run.lora is None:
        return 0, 0
    trained = run.lora.rank if run.lora is not None else None
    return asked.max_loras or _LORA_SLOTS, asked.max_lora_rank or trained or _LORA_RANK
