"""prime-train's own run.toml: a text becomes a RunSpec, with every fault against the schema. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, replace
from functools import partial
from typing import Any

from prime_train.config.parsed_config import MISSING_KEY, SYNTAX, UNKNOWN_KEY, Fault, Reading
from prime_train.config.schema import Table, table_of
from prime_train.config.validate import walk
from prime_train.spec import ENDLESS_STEPS, Data, Run, RunSpec
from prime_train.spec.server import ARGUMENTS, inference_of
from prime_train.toml.document import Document, KeyPath, dotted

DIALECT = "prime-train"
ROOT = "run"

# What the same thing is called in torchtitan, nanoGPT, TRL, Hugging Face's Trainer and prime-rl.
_ELSEWHERE = {
    "learning_rate": "optim.lr",
    "max_lr": "optim.lr",
    "wd": "optim.weight_decay",
    "adam_beta1": "optim.beta1",
    "adam_beta2": "optim.beta2",
    "grad_clip": "optim.clip_norm",
    "max_norm": "optim.clip_norm",
    "max_grad_norm": "optim.clip_norm",
    "steps": "run.max_steps",
    "max_iters": "run.max_steps",
    "total_steps": "run.max_steps",
    "num_hidden_layers": "model.layers",
    "n_layer": "model.layers",
    "n_layers": "model.layers",
    "num_attention_heads": "model.heads",
    "n_head": "model.heads",
    "n_heads": "model.heads",
    "num_key_value_heads": "model.kv_heads",
    "n_kv_heads": "model.kv_heads",
    "n_embd": "model.hidden_size",
    "d_model": "model.hidden_size",
    "dim": "model.hidden_size",
    "intermediate_size": "model.mlp_size",
    "rms_norm_eps": "model.norm_eps",
    "tie_word_embeddings": "model.tie_embeddings",
    "seq_len": "data.ctx_tokens",
    "seq_length": "data.ctx_tokens",
    "block_size": "data.ctx_tokens",
    "max_seq_length": "data.ctx_tokens",
    "num_workers": "data.loader_workers",
    "batch_size": "batch.global_batch",
    "micro_batch_size": "batch.micro_batch",
    "local_batch_size": "batch.micro_batch",
    "global_batch_size": "batch.global_batch",
    "warmup_iters": "schedule.warmup_steps",
    "lr_scheduler": "schedule.kind",
    "scheduler": "schedule",
    "optimizer": "optim",
    "ckpt": "checkpoint",
    "dtype": "precision.compute",
    "mixed_precision": "precision.compute",
    "dp_replicate_degree": "parallel.dp_replicate",
    "dp_shard_degree": "parallel.dp_shard",
    "nproc_per_node": "parallel.processes",
    "max_model_len": "inference.ctx_tokens",
    "tensor_parallel_size": "inference.tensor_parallel",
    "gpu_memory_utilization": "inference.gpu_memory_fraction",
    "served_model_name": "inference.served_name",
}
_OF_TRAINING = ("max_steps", "seed")  # keys of [run] that a server has no use for
_OF_A_TRAINING: dict[KeyPath, str] = {
    ("run", "max_steps"): "counts optimizer steps",
    ("run", "seed"): "seeds a training",
}
_TRAINS = ("model", "data", "tokenizer", "batch", "optim", "schedule", "parallel", "checkpoint", "eval", "precision")


def schema() -> Table:
    """What a run.toml may hold that trains."""
    return table_of(RunSpec)


def serving_schema() -> Table:
    """What a run.toml may hold that only serves: run.kind = "serve"."""
    whole = schema().fields
    run, server, ours = whole["run"], whole["inference"], whole["prime_train"]
    assert isinstance(run.shape, Table)
    kept = {key: item for key, item in run.shape.fields.items() if key not in _OF_TRAINING}
    run = run._replace(shape=Table(kept, partial(Run, max_steps=ENDLESS_STEPS)))
    return Table(
        {"run": run, "inference": server._replace(default=MISSING), "prime_train": ours},
        partial(RunSpec, data=Data(sources=())),
    )


def recognises(values: Mapping[str, object]) -> bool:
    """Whether a parsed TOML file is meant as a run.toml: it has [run], and [data] or a kind of run."""
    run = values.get("run")
    return isinstance(run, dict) and (isinstance(values.get("data"), dict) or "kind" in run)


def has_header(text: str) -> bool:
    """Whether a text that is not TOML has the header of [run]."""
    return any(line.strip() == "[run]" for line in text.splitlines())


def read(text: str, path: str) -> Reading:
    """The reading of a run.toml. Its `run` is there also beside faults, where defaults can stand in."""
    return read_document(Document.parse(text, path))


def read_document(document: Document) -> Reading:
    """The same of a text that is parsed already. Of one that is not TOML, what can be read is judged."""
    serves = _serves(document.values)
    root = serving_schema() if serves else schema()
    run, faults = walk(root, document.values, _ELSEWHERE)
    if serves:
        faults = [_without_training(fault) for fault in faults]
    if document.fault is not None:
        correct = document.fault.fix or "correct the line; what stands in it is unread"
        unread = Fault(SYNTAX, (), document.fault.what, correct)
        run, faults = None, [unread, *(fault for fault in faults if fault.code != MISSING_KEY)]
    if run is not None and run.server is not None:
        run = replace(run, inference=inference_of(run.server))
    keys = dict(_keys(root, everything=serves)) | _keys_of_inference(document.values)
    return Reading(document, DIALECT, "", ROOT, run, tuple(faults), keys, all_fields=not serves)


def _serves(values: Mapping[str, Any]) -> bool:
    run = values.get("run")
    return isinstance(run, dict) and run.get("kind") == "serve"


def _without_training(fault: Fault) -> Fault:
    """The fault of a key that a run.toml has where something is trained, in words that say so."""
    head = fault.key[0] if fault.key else ""
    what = "says how a model is trained" if head in _TRAINS and len(fault.key) == 1 else _OF_A_TRAINING.get(fault.key)
    if fault.code != UNKNOWN_KEY or what is None:
        return fault
    name = dotted(fault.key)
    told = f'{name} {what}, and run.kind = "serve" trains nothing'
    return Fault(UNKNOWN_KEY, fault.key, told, 'take it out, or run.kind = "pretrain"', {name: None})


def known_keys(values: Mapping[str, Any]) -> int:
    """How many of a file's keys, one table deep, are keys of a run.toml."""
    tables = {key: item.shape for key, item in schema().fields.items()}
    return sum(
        name in shape.fields
        for key, value in values.items()
        if isinstance(shape := tables.get(key), Table) and isinstance(value, dict)
        for name in value
    )


def _keys(table: Table, key: str = "", name: str = "", *, everything: bool) -> Iterator[tuple[str, str]]:
    """RunSpec field -> key: of `everything`, or of the fields whose key differs."""
    for item in table.fields.values():
        below_key, below_name = f"{key}{item.key}", f"{name}{item.name}"
        if everything or below_key != below_name:
            yield below_name, below_key
        if isinstance(item.shape, Table):
            yield from _keys(item.shape, f"{below_key}.", f"{below_name}.", everything=everything)


def _keys_of_inference(values: Mapping[str, Any]) -> dict[str, str]:
    """RunSpec field -> key of what every dialect calls inference; an argument as the file writes its name."""
    server = values.get("inference")
    given = server.get("arguments") if isinstance(server, dict) else None
    written = {str(key).replace("-", "_"): key for key in given} if isinstance(given, dict) else {}
    own = ("ctx_tokens", "tensor_parallel", "gpu_memory_fraction", "dtype", "enforce_eager", "host", "port")
    passed_on = {
        f"inference.{field}": f"inference.arguments.{written.get(argument, argument)}"
        for field, argument in ARGUMENTS.items()
    }
    return (
        passed_on
        | {f"inference.{name}": f"inference.{name}" for name in own}
        | {"inference.model_name": "inference.model"}
    )
