"""The parts of a RunSpec about the vLLM server. Values only.

`Server` is `[inference]` of a run.toml, and its annotations are the schema. The other classes are for every format;
their comments are prime-rl's keys, as in `spec/prime_rl_parts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from prime_train.spec.annotations import Doc, Ge, Gt, Le, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The vLLM server that prime-train starts and watches, or the trainer's own generation."""

    engine: Annotated[
        Literal["vllm", "local"],
        Doc("`vllm`: a server of its own. `local`: in a run with [[tasks]], the trainer generates by itself."),
    ] = "vllm"
    model: Annotated[
        str,
        Doc(
            "A Hugging Face folder, or a name on the hub; unset, in a run with [[tasks]] only: the weights of the run."
        ),
    ] = ""
    served_name: Annotated[str | None, Doc("Name of the model in requests; unset = `model`.")] = None
    python: Annotated[
        str | None, Doc("Interpreter of the environment with vLLM; unset = the interpreter of prime-train.")
    ] = None
    host: Annotated[Literal["127.0.0.1", "::1"], Doc("Address of the server, on this machine only.")] = "127.0.0.1"
    port: Annotated[int, Ge(1), Le(65535), Doc("Port of the server.")] = 8000
    ctx_tokens: Annotated[
        Positive | None, Doc("Maximum tokens of prompt and answer together; unset = the model's maximum.")
    ] = None
    dtype: Annotated[
        Literal["auto", "bfloat16", "float16", "float32"],
        Doc("Type of weights and activations; `auto` = the type in the model's config."),
    ] = "auto"
    tensor_parallel: Annotated[Positive, Doc("GPUs that share one copy of the model.")] = 1
    gpu_memory_fraction: Annotated[
        Annotated[float, Gt(0), Le(1)] | None,
        Doc("Fraction of each GPU's memory for the server, including the KV cache; unset = vLLM's default."),
    ] = None
    kv_cache_gib: Annotated[
        Annotated[float, Gt(0)] | None, Doc("Size of the KV cache; overrules gpu_memory_fraction. Required on a CPU.")
    ] = None
    enforce_eager: Annotated[bool, Doc("No CUDA graphs and no compilation: starts sooner, generates more slowly.")] = (
        False
    )
    arguments: Annotated[
        Mapping[str, bool | int | float | str] | None,
        Doc('Other arguments of vLLM by name: `quantization = "fp8"`; true = a flag without a value.'),
    ] = None
    ready_limit_s: Annotated[float, Gt(0), Doc("Longest wait for the first answer of the server.")] = 1800.0

    @property
    def kv_cache_bytes(self) -> int | None:
        return None if self.kv_cache_gib is None else round(self.kv_cache_gib * 2**30)

    @property
    def requests_name(self) -> str:
        return self.served_name or self.model or "policy"

    @property
    def base_url(self) -> str:
        """Where the server answers: "http://127.0.0.1:8000"."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def argument(self, name: str) -> object:
        """A value of `arguments`, whose name may have dashes or underscores; None if it is not set."""
        return next((value for key, value in (self.arguments or {}).items() if key.replace("-", "_") == name), None)


class Inference(NamedTuple):
    """The vLLM server. The part is None if the file launches none."""

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
    router: str | None = None  # inference.router.type if there is a router; [05] [01] -
    output_dir: str | None = None  # inference.output_dir; [01] -
    cache_bytes: int | None = None  # -; run.toml: inference.kv_cache_gib

    @property
    def gpus(self) -> int:
        return (self.tensor_parallel or 1) * (self.pipeline_parallel or 1) * (self.data_parallel or 1)


class WeightBroadcast(NamedTuple):
    """The transfer of weights from the trainer to inference."""

    kind: str | None = None  # weight_broadcast.type
    trainer_kind: str | None = None  # trainer.weight_broadcast.type, only if the file sets it
    rollout_kind: str | None = None  # orchestrator.weight_broadcast.type, only if the file sets it
    inference_kind: str | None = None  # inference.weight_broadcast.type, only if the file sets it
    host: str | None = None  # weight_broadcast.host; [05] [01] trainer.weight_broadcast.host
    port: int | None = None  # weight_broadcast.port; [05] [01] trainer.weight_broadcast.port
    timeout_s: int | None = None  # weight_broadcast.timeout; [05] [01] trainer.weight_broadcast.timeout


class Transport(NamedTuple):
    """The transfer of rollouts from the orchestrator to the trainer."""

    kind: str | None = None  # rollout_transport.type; [05] [01] trainer.rollout_transport.type
    port: int | None = None  # rollout_transport.port; [05] [01] trainer.rollout_transport.port


# Inference field -> vLLM's argument in [inference.arguments] of a run.toml.
ARGUMENTS = {
    "data_parallel": "data_parallel_size",
    "pipeline_parallel": "pipeline_parallel_size",
    "quantization": "quantization",
    "enable_lora": "enable_lora",
    "max_lora_rank": "max_lora_rank",
    "max_loras": "max_loras",
    "max_cpu_loras": "max_cpu_loras",
    "expert_parallel": "enable_expert_parallel",
    "prefix_caching": "enable_prefix_caching",
    "revision": "revision",
    "trust_remote_code": "trust_remote_code",
    "tool_call_parser": "tool_call_parser",
    "reasoning_parser": "reasoning_parser",
    "auto_tool_choice": "enable_auto_tool_choice",
    "chat_template": "chat_template",
    "api_servers": "api_server_count",
    "max_sequences": "max_num_seqs",
    "batched_tokens": "max_num_batched_tokens",
    "cache_dtype": "kv_cache_dtype",
    "rpc_port": "data_parallel_rpc_port",
}
_TYPES: dict[str, type] = {
    **dict.fromkeys(("data_parallel", "pipeline_parallel", "max_lora_rank", "max_loras", "max_cpu_loras"), int),
    **dict.fromkeys(("api_servers", "max_sequences", "batched_tokens", "rpc_port"), int),
    **dict.fromkeys(("enable_lora", "expert_parallel", "prefix_caching", "trust_remote_code"), bool),
    "auto_tool_choice": bool,
}


def inference_of(server: Server) -> Inference:
    """The server for the rules and the estimate. An argument of a wrong type is not known."""
    given = {field: server.argument(argument) for field, argument in ARGUMENTS.items()}
    known = {field: value for field, value in given.items() if type(value) is _TYPES.get(field, str)}
    return Inference(
        model_name=server.model,
        ctx_tokens=server.ctx_tokens,
        tensor_parallel=server.tensor_parallel,
        gpu_memory_fraction=server.gpu_memory_fraction,
        dtype=server.dtype,
        enforce_eager=server.enforce_eager,
        cache_bytes=server.kv_cache_bytes,
        host=server.host,
        port=server.port,
        **known,  # type: ignore[arg-type]  # each was compared with its type above
    )
