"""The parts of a RunSpec about the server and what goes to and from it: keys as in `spec/elsewhere.py`. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Inference(NamedTuple):
    """The vLLM server. The part is None where the file launches none."""

    model_name: str | None = None  # inference.vllm.model, else model.name; [05] [01] inference.model.name
    ctx_tokens: int | None = None  # inference.vllm.max_model_len; [05] [01] inference.model.max_model_len
    tensor_parallel: int | None = None  # inference.vllm.tensor_parallel_size; [05] [01] inference.parallel.tp
    data_parallel: int | None = None  # inference.vllm.data_parallel_size; [05] [01] inference.parallel.dp
    pipeline_parallel: int | None = None  # inference.vllm.pipeline_parallel_size; [05] [01] -
    gpu_memory_fraction: float | None = None  # inference.vllm.gpu_memory_utilization; [05] [01] inference.gpu_mem...
    dtype: str | None = None  # inference.vllm.dtype; [05] [01] inference.model.dtype
    quantization: str | None = None  # inference.vllm.quantization; [05] [01] -
    enable_lora: bool | None = None  # inference.vllm.enable_lora; [05] [01] inference.enable_lora
    max_lora_rank: int | None = None  # inference.vllm.max_lora_rank; [05] [01] inference.max_lora_rank
    max_loras: int | None = None  # inference.vllm.max_loras; [05] [01] inference.max_loras
    max_cpu_loras: int | None = None  # inference.vllm.max_cpu_loras; [05] [01] inference.max_cpu_loras
    expert_parallel: bool | None = None  # inference.vllm.enable_expert_parallel; [01] -
    prefix_caching: bool | None = None  # inference.vllm.enable_prefix_caching; [01] -
    enforce_eager: bool | None = None  # inference.vllm.enforce_eager; [05] [01] inference.model.enforce_eager
    revision: str | None = None  # inference.vllm.revision; [05] [01] -
    trust_remote_code: bool | None = None  # inference.vllm.trust_remote_code; [05] [01] inference.model.trust_...
    tool_call_parser: str | None = None  # inference.vllm.tool_call_parser; [05] [01] inference.model.tool_call_parser
    reasoning_parser: str | None = None  # inference.vllm.reasoning_parser; [05] [01] inference.model.reasoning_parser
    auto_tool_choice: bool | None = None  # -; [01] inference.model.enable_auto_tool_choice
    chat_template: str | None = None  # inference.vllm.chat_template; [05] inference.model.chat_template; [01] -
    rope_scaling: Mapping[str, object] | None = None  # inference.vllm.rope_scaling; [05] [01] inference.model.rope_...
    api_servers: int | None = None  # inference.vllm.api_server_count; [05] [01] inference.api_server_count
    max_sequences: int | None = None  # inference.vllm.max_num_seqs; [05] [01] -
    batched_tokens: int | None = None  # inference.vllm.max_num_batched_tokens; [05] [01] -
    cache_dtype: str | None = None  # inference.vllm.kv_cache_dtype; [05] [01] -
    host: str | None = None  # inference.server.host
    port: int | None = None  # inference.server.port
    backend_port: int | None = None  # inference.backend_port; [05] inference.deployment.backend_port; [01] -
    rpc_port: int | None = None  # inference.vllm.data_parallel_rpc_port; [05] inference.data_...; [01] -
    router: str | None = None  # inference.router.type where there is a router; [05] [01] -
    output_dir: str | None = None  # inference.output_dir; [01] -


class WeightBroadcast(NamedTuple):
    """How weights go from the trainer to inference."""

    kind: str | None = None  # weight_broadcast.type
    trainer_kind: str | None = None  # trainer.weight_broadcast.type, only where the file says it
    rollout_kind: str | None = None  # orchestrator.weight_broadcast.type, only where the file says it
    inference_kind: str | None = None  # inference.weight_broadcast.type, only where the file says it
    host: str | None = None  # weight_broadcast.host; [05] [01] trainer.weight_broadcast.host
    port: int | None = None  # weight_broadcast.port; [05] [01] trainer.weight_broadcast.port
    timeout_s: int | None = None  # weight_broadcast.timeout; [05] [01] trainer.weight_broadcast.timeout


class Transport(NamedTuple):
    """How rollouts go from the orchestrator to the trainer."""

    kind: str | None = None  # rollout_transport.type; [05] [01] trainer.rollout_transport.type
    port: int | None = None  # rollout_transport.port; [05] [01] trainer.rollout_transport.port
