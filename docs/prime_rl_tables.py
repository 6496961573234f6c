"""Writes registry/prime_rl/<generation>.json from field rows: `python docs/prime_rl_tables.py FOLDER`.

FOLDER holds fields-<generation>.json, the rows that config/prime_rl/table.py describes. This file adds the features
of each generation and which keys feed which field of a RunSpec. FEEDS has one line per field, with its key in 2026-08,
2026-05 and 2026-01. "=" means the same key as in the next newer generation, "" no key. "|" separates alternatives; the
first key that is set counts; in 2026-01 the shared key overrules that of a part. A leading "#" counts the elements of a
list, a leading "?" checks whether a table exists.

The tables type what prime-rl resolves only when it validates: the agent of the default environment, from the classes
of verifiers. What a plug-in owns stays open, except for the plug-ins that come with verifiers: their keys are written
by hand under "plugins" of a table file, which is kept (config/prime_rl/plugins.py). A union that is not set by default
needs its tag, because prime-rl fills in `type` only from a default. Lists of names (renderers, scorers) carry
source and date; a doubtful name is in the list, because a false refusal is worse than a miss.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prime_train.config.prime_rl.schema import SchemaGeneration
from prime_train.config.prime_rl.table import TableOrigin, compact, to_json
from prime_train.config.schema import table_below

TABLES = Path(__file__).parents[1] / "registry" / "prime_rl"

# The agent of the default environment, which prime-rl 2026-08 resolves when it validates: rows of SingleAgentEnvConfig
# of verifiers 0.3.1 (PyPI), by facts/prime_rl_program.py. The plug-ins of a harness and of a judge have further keys,
# and a client those of its renderer, so these three are open. runtime.type has no default: 0.3.0 starts a subprocess,
# 0.3.1 a sandbox.
AGENT = Path(__file__).parent / "prime_rl_agent.json"
AGENT_SINCE = "2026-08"

# Keys that 2026-05 also reads in an older place, by prime-rl 618de8a, configs/orchestrator.py, fold_student_shortcuts:
# a row marked `legacy` stands for them. `model` is no alias of `student`, because a file may have both. A client that
# is no table is dropped there without a word.
_OLDER_PLACES = {
    "client": "student.client",
    **{f"student.{key}": f"student.model.{key}" for key in ("name", "trust_remote_code", "vlm", "lora")},
    "model": "student",
}

# What config/prime_rl/features.py means by each name, in 2026-08, 2026-05 and 2026-01.
FEATURES: dict[str, tuple[Any, ...]] = {
    # pyproject.toml at v0.5.0 has vllm 0.22.0. For the others the version of that month: every entry of
    # registry/vllm_memory.toml from 0.21 to 0.31 gives the same numbers, and so does every one from 0.10 to 0.20.
    "vllm": ("0.27", "0.22", "0.14"),
    "names_runs": (True, False, False),  # entrypoints/rl.py, utils/pathing.py
    "cleans_by_default": (False, False, True),  # entrypoints/rl.py
    "head_chunk_vocab": (0, 0, 2048),  # v0.3.0: fused_lm_head_chunk_size "auto" of the RL trainer
    "slow_moe_attention": (False, False, True),  # benchmarks/baselines@bffbdd057; estimate/time/step_terms.py
    "vision_needs_bf16": (True, False, False),  # validator on [model.vlm]
    "refuses_offline_shared_run": (True, False, False),  # validator on monitors.wandb.offline
    "reserved_environment_names": (["agg"], [], []),  # validator on source names
}

# (generation, source, date, first release), the newest first. A newer one goes in front: a line of FEATURES or FEEDS
# that has no value for it means that nothing changed. Releases: prime-rl's tags, v0.5.0 2026-03-30, v0.7.0 2026-07-14.
ORIGINS = (
    ("2026-08", "prime-rl 559b447 (v0.8.1.dev67)", "2026-08-21", "0.7.0"),
    ("2026-05", "prime-rl 618de8a (v0.5.1.dev261)", "2026-05-30", "0.5.0"),
    ("2026-01", "prime-rl e794fbe (v0.3.0+65)", "2026-01-30", ""),
)


def _of_client(key: str) -> tuple[str, str, str]:
    student = (f"orchestrator.student.client.{key}", f"orchestrator.client.{key}", f"orchestrator.model.client.{key}")
    return student[2], "|".join(student), student[1]


def _of_student(key: str) -> str:
    fronts = ("student.model", "student", "model")
    return "|".join(f"orchestrator.{front}.{key}" for front in fronts)


FEEDS: dict[str, tuple[str, ...]] = {
    "run.name": ("run.name", "", ""),
    "run.max_steps": ("max_steps|trainer.max_steps", "=", "="),
    "checkpoint.interval_steps": ("ckpt.interval|trainer.ckpt.interval", "=", "="),
    "checkpoint.keep_every_steps": ("ckpt.keep_interval", "=", "="),
    "optim.lr": ("trainer.optim.lr", "=", "="),
    "optim.weight_decay": ("trainer.optim.weight_decay", "=", "="),
    "optim.clip_norm": ("trainer.optim.max_norm", "=", "="),
    "optim.beta1": ("trainer.optim.betas1", "=", "="),
    "optim.beta2": ("trainer.optim.betas2", "=", "="),
    "schedule.kind": ("trainer.scheduler.type", "=", "="),
    "schedule.warmup_steps": ("trainer.scheduler.warmup_steps", "=", "="),
    "schedule.decay_steps": ("trainer.scheduler.decay_steps", "=", "="),
    "launch.output_dir": ("output_dir", "=", "="),
    "launch.run_dir": ("run.dir", "", ""),
    "launch.run_name": ("run.name", "", ""),
    "launch.clean": ("clean", "clean_output_dir", "clean"),
    "launch.dry_run": ("dry_run", "=", ""),
    "launch.env_vars": ("env_vars", "", ""),
    "launch.trainer_env_vars": ("trainer.env_vars", "", ""),
    "launch.orchestrator_env_vars": ("orchestrator.env_vars", "", ""),
    "launch.inference_env_vars": ("inference.env_vars", "", ""),
    "launch.slurm": ("?slurm", "=", ""),
    "resume.step": ("resume.step", "ckpt.resume_step", "="),
    "resume.dir": ("resume.dir", "", ""),
    "saving": ("ckpt|trainer.ckpt", "=", "="),
    "saving.keep_last": ("ckpt.keep_last|trainer.ckpt.keep_last", "=", "="),
    "saving.output_dir": ("ckpt.output_dir", "=", ""),
    "saving.trainer_interval_steps": ("trainer.ckpt.interval", "=", "ckpt.interval|trainer.ckpt.interval"),
    "saving.orchestrator_interval_steps": (
        "orchestrator.ckpt.interval",
        "=",
        "ckpt.interval|orchestrator.ckpt.interval",
    ),
    "saving.skip_optimizer": ("trainer.ckpt.skip_optimizer", "=", "="),
    "saving.skip_scheduler": ("trainer.ckpt.skip_scheduler", "=", "="),
    "deployment.kind": ("deployment.type", "=", ""),
    "deployment.gpus_per_node": ("deployment.gpus_per_node", "=", ""),
    "deployment.train_gpus": (
        "deployment.num_train_gpus",
        "deployment.num_train_gpus|deployment.num_gpus",
        "#trainer_gpu_ids",
    ),
    "deployment.infer_gpus": ("deployment.num_infer_gpus", "=", "#inference_gpu_ids"),
    "deployment.train_nodes": (
        "deployment.num_train_nodes",
        "deployment.num_train_nodes|deployment.num_nodes",
        "",
    ),
    "deployment.infer_nodes": ("deployment.num_infer_nodes", "=", ""),
    "deployment.nodes_per_fsdp_group": ("deployment.nodes_per_fsdp_group", "=", ""),
    "deployment.train_gpu_ids": ("", "", "trainer_gpu_ids"),
    "deployment.infer_gpu_ids": ("", "", "inference_gpu_ids"),
    "trainer.model_name": ("trainer.model.name|model.name", "=", "model.name|trainer.model.name"),
    "trainer.ctx_tokens": ("trainer.model.seq_len|seq_len", "=", "seq_len|trainer.model.seq_len"),
    "trainer.max_steps": ("trainer.max_steps", "=", "max_steps|trainer.max_steps"),
    "trainer.attention": ("trainer.model.attn", "=", "="),
    "trainer.trust_remote_code": ("trainer.model.trust_remote_code", "=", "="),
    "trainer.vision": ("?trainer.model.vlm|?model.vlm", "=", "="),
    "trainer.dp_replicate": ("trainer.model.dp_replicate", "=", "="),
    "trainer.context_parallel": ("trainer.model.cp", "=", "="),
    "trainer.expert_parallel": ("trainer.model.ep", "=", "="),
    "trainer.tensor_parallel": ("", "", "trainer.model.tp"),
    "trainer.fsdp_cpu_offload": ("trainer.model.fsdp_cpu_offload", "=", "="),
    "trainer.optim_cpu_offload": ("trainer.model.optim_cpu_offload", "=", "="),
    "trainer.activation_checkpointing": ("?trainer.model.ac", "=", "="),
    "trainer.activation_offloading": ("?trainer.model.ac_offloading", "=", "="),
    "trainer.checkpointing_mode": ("trainer.model.ac.mode", "=", ""),
    "trainer.offload_inflight": ("trainer.model.ac_offloading.max_inflight_activations", "=", "="),
    "trainer.compile": ("?trainer.model.compile", "=", "="),
    "trainer.max_concurrent_runs": ("", "trainer.max_concurrent_runs", "="),
    "trainer.reshard_after_forward": ("trainer.model.reshard_after_forward", "=", "="),
    "trainer.optimization_dtype": ("trainer.model.optimization_dtype", "=", "="),
    "trainer.reduce_dtype": ("trainer.model.reduce_dtype", "=", "="),
    "trainer.quantization": ("trainer.model.quantization.type", "", ""),
    "trainer.fp8": ("", "trainer.model.fp8", ""),
    "trainer.grouped_experts": ("trainer.model.moe_use_grouped_mm", "=", "="),
    "trainer.head_chunk_tokens": ("trainer.model.fused_lm_head_token_chunk_size", "=", ""),
    "trainer.head_chunk_vocab": ("", "", "trainer.model.fused_lm_head_chunk_size"),
    "trainer.optimizer": ("trainer.optim.type", "=", "="),
    "trainer.min_lr": ("trainer.scheduler.min_lr", "=", "="),
    "trainer.dist_timeout_s": ("trainer.dist_timeout_seconds", "=", "="),
    "trainer.metrics_port": ("trainer.metrics_server.port", "=", "="),
    "trainer.trace_path": ("trainer.trace_path", "=", "="),
    "trainer.tokenizer_name": ("trainer.tokenizer.name|tokenizer.name", "=", "="),
    "trainer.chat_template": ("trainer.tokenizer.chat_template|tokenizer.chat_template", "=", ""),
    "trainer.output_dir": ("trainer.output_dir", "=", "="),
    "trainer.fake_data": ("?trainer.data.fake", "=", "="),
    "trainer.bench": ("", "?bench|?trainer.bench", "="),
    "trainer.debug_layers": ("trainer.model.debug.num_layers", "=", "="),
    "trainer.random_init": ("trainer.model.debug.random_init", "=", "="),
    "finetune": ("data", "=", "="),
    "finetune.data_name": ("data.name", "=", "="),
    "finetune.ctx_tokens": ("data.seq_len", "=", "="),
    "finetune.batch_sequences": ("data.batch_size", "=", "="),
    "finetune.micro_batch_sequences": ("data.micro_batch_size", "=", "="),
    "finetune.pack": ("", "data.pack_function", "="),
    "finetune.splits": ("data.splits", "=", "="),
    "finetune.subsets": ("data.subsets", "=", "="),
    "finetune.sampling_probs": ("data.probabilities", "=", "="),
    "lora": ("trainer.model.lora", "=", "="),
    "lora.rank": ("trainer.model.lora.rank", "=", "="),
    "lora.alpha": ("trainer.model.lora.alpha", "=", "="),
    "lora.dropout": ("trainer.model.lora.dropout", "=", "="),
    "lora.target_modules": ("trainer.model.lora.target_modules", "=", "="),
    "lora.modules_to_save": ("trainer.model.lora.modules_to_save", "=", "="),
    "rollout": ("orchestrator", "=", "="),
    "rollout.model_name": (
        "orchestrator.model.name|model.name",
        f"{_of_student('name')}|model.name",
        "model.name|orchestrator.model.name",
    ),
    "rollout.lora_name": (
        "orchestrator.model.lora.name",
        _of_student("lora.name"),
        "orchestrator.model.lora.name",
    ),
    "rollout.lora_rank": (
        "orchestrator.model.lora.rank",
        _of_student("lora.rank"),
        "orchestrator.model.lora.rank",
    ),
    "rollout.lora_alpha": (
        "orchestrator.model.lora.alpha",
        _of_student("lora.alpha"),
        "orchestrator.model.lora.alpha",
    ),
    "rollout.algorithm": ("orchestrator.algo.type", "orchestrator.training_mode", ""),
    "rollout.ctx_tokens": ("orchestrator.seq_len|seq_len", "=", "seq_len|orchestrator.seq_len"),
    "rollout.max_steps": ("orchestrator.max_steps", "=", "max_steps|orchestrator.max_steps"),
    "rollout.batch_rollouts": ("orchestrator.batch_size", "=", "="),
    "rollout.batch_tokens": ("orchestrator.token_batch_size", "=", ""),
    "rollout.group_size": ("orchestrator.group_size", "=", "orchestrator.rollouts_per_example"),
    "rollout.max_completion_tokens": (
        "orchestrator.train.sampling.max_completion_tokens",
        "=",
        "orchestrator.sampling.max_tokens",
    ),
    "rollout.min_tokens": ("", "", "orchestrator.sampling.min_tokens"),
    "rollout.temperature": ("orchestrator.train.sampling.temperature", "=", "orchestrator.sampling.temperature"),
    "rollout.seed": ("", "orchestrator.train.sampling.seed", "orchestrator.sampling.seed"),
    "rollout.repetition_penalty": ("", "", "orchestrator.sampling.repetition_penalty"),
    "rollout.extra_body": ("orchestrator.train.sampling.extra_body", "=", "orchestrator.sampling.extra_body"),
    "rollout.max_off_policy_steps": ("orchestrator.max_off_policy_steps", "=", "="),
    "rollout.max_async_level": ("", "", "max_async_level|orchestrator.max_async_level"),
    "rollout.initial_inflight": ("orchestrator.concurrency.initial_inflight", "", ""),
    "rollout.max_inflight": (
        "orchestrator.concurrency.max_inflight",
        "orchestrator.max_inflight_rollouts",
        "orchestrator.max_concurrent",
    ),
    "rollout.min_inflight": ("orchestrator.concurrency.min_inflight", "", ""),
    "rollout.client_timeout_s": (
        "",
        "orchestrator.student.client.timeout|orchestrator.client.timeout",
        "orchestrator.client.timeout",
    ),
    "rollout.wait_for_ready_s": (*_of_client("wait_for_ready_timeout")[:2], ""),
    "rollout.base_urls": _of_client("base_url"),
    "rollout.headers": _of_client("headers"),
    "rollout.trust_remote_code": (
        "orchestrator.model.trust_remote_code",
        _of_student("trust_remote_code"),
        "orchestrator.model.trust_remote_code",
    ),
    "rollout.env_server_base_port": ("orchestrator.env_server_base_port", "", ""),
    "rollout.output_dir": ("orchestrator.output_dir", "=", "="),
    "rollout.chat_template": ("orchestrator.tokenizer.chat_template|tokenizer.chat_template", "=", ""),
    "rollout.trajectory_strategy": ("", "", "orchestrator.trajectory_strategy"),
    "environments.train": ("orchestrator.train.source", "orchestrator.train.env", "orchestrator.env"),
    "environments.evaluate": ("orchestrator.eval.source", "orchestrator.eval.env", "="),
    "evaluation": ("orchestrator.eval", "=", "="),
    "evaluation.interval_steps": ("orchestrator.eval.interval", "=", "="),
    "evaluation.examples": ("orchestrator.eval.num_examples", "=", "="),
    "evaluation.group_size": ("orchestrator.eval.group_size", "=", "orchestrator.eval.rollouts_per_example"),
    "evaluation.max_completion_tokens": (
        "orchestrator.eval.sampling.max_completion_tokens",
        "=",
        "orchestrator.eval.sampling.max_tokens",
    ),
    "evaluation.temperature": ("orchestrator.eval.sampling.temperature", "=", "="),
    "inference": ("inference", "=", "="),
    "inference.model_name": (
        "inference.vllm.model|model.name",
        "inference.model.name|model.name",
        "model.name|inference.model.name",
    ),
    # The max_model_len at the top of 2026-01 reaches no part: rl.py has no auto_setup for it.
    "inference.ctx_tokens": ("inference.vllm.max_model_len", "inference.model.max_model_len", "="),
    "inference.tensor_parallel": ("inference.vllm.tensor_parallel_size", "inference.parallel.tp", "="),
    "inference.data_parallel": ("inference.vllm.data_parallel_size", "inference.parallel.dp", "="),
    "inference.pipeline_parallel": ("inference.vllm.pipeline_parallel_size", "", ""),
    "inference.gpu_memory_fraction": ("inference.vllm.gpu_memory_utilization", "inference.gpu_memory_utilization", "="),
    "inference.dtype": ("inference.vllm.dtype", "inference.model.dtype", "="),
    "inference.quantization": ("inference.vllm.quantization", "", ""),
    "inference.enable_lora": ("inference.vllm.enable_lora", "inference.enable_lora", "="),
    "inference.max_lora_rank": ("inference.vllm.max_lora_rank", "inference.max_lora_rank", "="),
    "inference.max_loras": ("inference.vllm.max_loras", "inference.max_loras", "="),
    "inference.max_cpu_loras": ("inference.vllm.max_cpu_loras", "inference.max_cpu_loras", "="),
    "inference.expert_parallel": ("inference.vllm.enable_expert_parallel", "inference.enable_expert_parallel", ""),
    "inference.prefix_caching": ("inference.vllm.enable_prefix_caching", "inference.enable_prefix_caching", ""),
    "inference.enforce_eager": ("inference.vllm.enforce_eager", "inference.model.enforce_eager", "="),
    "inference.revision": ("inference.vllm.revision", "", ""),
    "inference.trust_remote_code": ("inference.vllm.trust_remote_code", "inference.model.trust_remote_code", "="),
    "inference.tool_call_parser": ("inference.vllm.tool_call_parser", "inference.model.tool_call_parser", "="),
    "inference.reasoning_parser": ("inference.vllm.reasoning_parser", "inference.model.reasoning_parser", "="),
    "inference.auto_tool_choice": ("", "", "inference.model.enable_auto_tool_choice"),
    "inference.chat_template": ("inference.vllm.chat_template", "inference.model.chat_template", ""),
    "inference.rope_scaling": ("inference.vllm.rope_scaling", "inference.model.rope_scaling", "="),
    "inference.api_servers": ("inference.vllm.api_server_count", "inference.api_server_count", "="),
    "inference.max_sequences": ("inference.vllm.max_num_seqs", "", ""),
    "inference.batched_tokens": ("inference.vllm.max_num_batched_tokens", "", ""),
    "inference.cache_dtype": ("inference.vllm.kv_cache_dtype", "", ""),
    "inference.host": ("inference.server.host", "=", "="),
    "inference.port": ("inference.server.port", "=", "="),
    "inference.backend_port": ("inference.backend_port", "inference.deployment.backend_port", ""),
    "inference.rpc_port": ("inference.vllm.data_parallel_rpc_port", "inference.data_parallel_rpc_port", ""),
    "inference.router": ("inference.router.type", "", ""),
    "inference.output_dir": ("inference.output_dir", "=", ""),
    "weight_broadcast.kind": ("weight_broadcast.type", "=", "="),
    "weight_broadcast.trainer_kind": ("trainer.weight_broadcast.type", "=", "="),
    "weight_broadcast.rollout_kind": ("orchestrator.weight_broadcast.type", "=", "="),
    "weight_broadcast.inference_kind": ("inference.weight_broadcast.type", "=", "="),
    "weight_broadcast.host": (
        "weight_broadcast.host|trainer.weight_broadcast.host",
        "trainer.weight_broadcast.host",
        "=",
    ),
    "weight_broadcast.port": (
        "weight_broadcast.port|trainer.weight_broadcast.port",
        "=",
        "trainer.weight_broadcast.port",
    ),
    "weight_broadcast.timeout_s": (
        "weight_broadcast.timeout|trainer.weight_broadcast.timeout",
        "=",
        "trainer.weight_broadcast.timeout",
    ),
    "transport.kind": ("rollout_transport.type|trainer.rollout_transport.type", "trainer.rollout_transport.type", "="),
    "transport.port": ("rollout_transport.port|trainer.rollout_transport.port", "trainer.rollout_transport.port", "="),
    "monitor": ("monitors.wandb", "wandb", "="),
    "monitor.project": ("monitors.wandb.project", "wandb.project", "="),
    "monitor.name": ("monitors.wandb.name", "wandb.name", "="),
    "monitor.offline": ("monitors.wandb.offline", "wandb.offline", "="),
}

# Counts that prime-rl does not limit, and that must be at least one for a run to work.
_COUNTS = frozenset(
    (
        *("max_steps", "seq_len", "num_train_gpus", "num_train_nodes", "gpus_per_node", "max_completion_tokens"),
        *("max_model_len", "tensor_parallel_size", "tp", "batch_size", "micro_batch_size", "max_lora_rank"),
        *("max_loras", "max_tokens", "rollouts_per_example", "interval"),
    )
)
_OR_NONE = frozenset(("num_infer_gpus", "num_infer_nodes"))  # these may also be zero

# Classes of 2026-01 that do not read "None" as no value, because they are no BaseConfig of utils/pydantic_config.py.
_WITHOUT_NONE = frozenset(
    (
        *("RLConfig", "RLTrainerConfig", "SFTTrainerConfig", "SFTDataConfig", "OrchestratorConfig", "InferenceConfig"),
        *("SharedLogConfig", "SharedWandbConfig", "SharedCheckpointConfig", "SharedModelConfig"),
        *("SharedWeightBroadcastConfig", "WeightBroadcastConfig"),
    )
)

# root -> the parts of a RunSpec that it fills, and the component names that its keys omit in front.
_SHARED = ("run", "checkpoint", "launch", "resume", "saving", "monitor", "deployment", "weight_broadcast")
_TRAINING = (*_SHARED, "optim", "schedule", "trainer", "lora")
_ROOTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "rl": (
        (*_TRAINING, "rollout", "environments", "evaluation", "inference", "transport"),
        ("",),
    ),
    "sft": ((*_TRAINING, "finetune", "environments", "evaluation", "inference"), ("", "trainer.", "orchestrator.")),
    "trainer": ((*_TRAINING, "transport"), ("trainer.", "")),
    "orchestrator": (
        (*_SHARED, "rollout", "environments", "evaluation", "transport"),
        ("orchestrator.", ""),
    ),
    "inference": (("launch", "inference", "deployment", "weight_broadcast"), ("inference.",)),
    "evals": (("launch", "environments", "evaluation", "monitor"), ("", "orchestrator.")),
}


def feeds_of(schema: SchemaGeneration, column: int) -> dict[str, dict[str, list[str]]]:
    """Root -> RunSpec field -> the keys of the table that set it."""
    found: dict[str, dict[str, list[str]]] = {}
    for root, (parts, fronts) in _ROOTS.items():
        if root not in schema.roots:
            continue
        keys_of = {name: _in_root(schema, root, fronts, _column(keys, column)) for name, keys in FEEDS.items()}
        found[root] = {name: keys for name, keys in keys_of.items() if keys and name.partition(".")[0] in parts}
    return found


def _column(keys: tuple[str, ...], column: int) -> list[str]:
    column = _at(keys, column)
    while keys[column] == "=":
        column -= 1
    return keys[column].split("|")


def _at(values: tuple[Any, ...], column: int) -> int:
    """Where a line has its value for ORIGINS[column]. A line that is shorter than ORIGINS lacks the newest ones."""
    return max(0, column - (len(ORIGINS) - len(values)))


def _in_root(schema: SchemaGeneration, root: str, fronts: tuple[str, ...], keys: list[str]) -> list[str]:
    """The keys as the root has them: without the root's own component in front."""
    legal: list[str] = []
    for written in keys:
        mark, key = (written[0], written[1:]) if written[:1] in ("#", "?") else ("", written)
        for front in fronts:
            inside = key.removeprefix(front)
            if (not front or key.startswith(front)) and inside and _is_legal(schema, root, inside):
                legal.append(mark + inside)
                break
    return list(dict.fromkeys(legal))


def _is_legal(schema: SchemaGeneration, root: str, key: str) -> bool:
    path = tuple(key.split("."))
    if schema.find(root, path) is not None:
        return True
    around = schema.find(root, path[:-1])  # an open table accepts keys that it does not list
    below = table_below(around.shape)[0] if around is not None else None
    return below is not None and below.may_be_open


def _agent_rows(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The rows of the agent below each environment, and the keys of a judge's plug-in."""
    agent = json.loads(AGENT.read_text(encoding="utf-8"))
    for judges in [row for row in rows if row["type"] == "list[JudgeConfig]"]:
        yield {"root": judges["root"], "path": f"{judges['path']}[].*", "type": "any (extra=allow)", "open": True}
    for around in [row for row in rows if row["type"] == "EnvConfig"]:
        front = f"{around['path']}."
        for row in agent:
            when = [front + condition for condition in row.get("only_when", ())]
            placed = row | {"root": around["root"], "path": front + row["path"]}
            yield placed | ({"only_when": when} if when else {})


def _with_older_places(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, with those of the keys that are read in an older place too."""
    made = [row for row in rows if not row.get("legacy")]
    for client in [row for row in rows if row.get("legacy") and row["path"].endswith("client")]:
        front = client["path"].removesuffix("client")
        for older, newer in _OLDER_PLACES.items():
            for row in [row for row in made if row["root"] == client["root"]]:
                if row["path"] == front + newer:
                    lax = " | any" if older == "client" else ""
                    made.append(
                        row | {"path": front + older, "type": row["type"] + lax, "default": None, "aliases": []}
                    )
                elif older == "model" and row["path"].startswith("student.model", len(front)):
                    continue  # the keys of student.model stand in [model] itself
                elif row["path"].startswith(f"{front}{newer}."):
                    made.append(row | {"path": front + older + row["path"].removeprefix(front + newer)})
        made.append({"root": client["root"], "path": f"{front}model.model", "type": "any", "in_class": []})
        for row in made:
            if row["root"] == client["root"] and row["path"] == f"{front}student":
                row["aliases"] = []
    return made


def main(folder: Path) -> None:
    for column, about in enumerate(ORIGINS):
        origin = TableOrigin(*about, {name: values[_at(values, column)] for name, values in FEATURES.items()})
        rows = json.loads((folder / f"fields-{origin.generation}.json").read_text(encoding="utf-8"))
        for row in rows:
            if row["path"].rpartition(".")[2] in _COUNTS and row["type"] in ("int", "int | None"):
                row["constraints"] = row.get("constraints") or "ge=1"
            if row["path"].rpartition(".")[2] in _OR_NONE:
                row["constraints"] = row.get("constraints") or "ge=0"
            if origin.generation == "2026-01" and not _WITHOUT_NONE.isdisjoint(row["in_class"]):
                row["type"] = re.sub(r"^(?!str|Path)(.*) \| None$", r"\1", row["type"])  # a text may be "None"
            if row["path"].endswith("model.full_offload"):
                row["type"] += " | bool"  # prime-rl's own examples of 2026-08 have `full_offload = true`
            if row["root"] == "rl" and row["path"] == "rollout_transport":
                row["default"] = {"__class__": "ZMQTransportConfig"}  # its table is given to the trainer, who has this
            if row["root"] == "sft" and row["path"] in ("deployment.num_train_gpus", "deployment.num_infer_gpus"):
                row["only_when"] = []  # SFTConfig takes them out of a multi-node deployment
            if any("renderer.type=" in one for one in row.get("only_when") or ()):  # the tag of renderers is `name`
                row["only_when"] = [one.replace("renderer.type=", "renderer.name=") for one in row["only_when"]]
            if row["path"].endswith("renderer.*") and "CustomRendererConfig" in row["in_class"]:
                row["in_class"] = [
                    "DefaultRendererConfig",
                    "CustomRendererConfig",
                ]  # both allow any key: renderers 0.1.12
            if row["root"] == "sft" and row["path"] == "deployment.num_gpus" and origin.generation == "2026-05":
                del row["only_when"]  # configs/sft.py, normalize_deployment: several nodes drop it
            if row["path"].endswith("filters[].type"):
                row["required"] = True  # prime-pydantic-config fills a missing type in only outside of arrays
        rows = _with_older_places(rows)
        if origin.generation >= AGENT_SINCE:
            rows += list(_agent_rows(rows))
        table = compact(rows, origin, {})
        table["feeds"] = feeds_of(SchemaGeneration.of(table), column)
        file = TABLES / f"{origin.generation}.json"
        plugins = json.loads(file.read_text(encoding="utf-8")).get("plugins") if file.exists() else None
        file.write_text(to_json(table | ({"plugins": plugins} if plugins else {})), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
