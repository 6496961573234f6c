"""prime-train's own run.toml: a text becomes a RunSpec, with every fault against the schema. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prime_train.dialects.reading import MISSING_KEY, SYNTAX, Fault, Reading
from prime_train.dialects.shapes import Table, table_of
from prime_train.dialects.walk import walk
from prime_train.document import Document
from prime_train.spec import RunSpec

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
}


def schema() -> Table:
    return table_of(RunSpec)


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
    root = schema()
    run, faults = walk(root, document.values, _ELSEWHERE)
    if document.fault is not None:
        correct = document.fault.fix or "correct the line; what stands in it is unread"
        unread = Fault(SYNTAX, (), document.fault.what, correct)
        run, faults = None, [unread, *(fault for fault in faults if fault.code != MISSING_KEY)]
    return Reading(document, DIALECT, "", ROOT, run, tuple(faults), dict(_renamed(root)))


def known_keys(values: Mapping[str, Any]) -> int:
    """How many of a file's keys, one table deep, are keys of a run.toml."""
    tables = {key: item.shape for key, item in schema().fields.items()}
    return sum(
        name in shape.fields
        for key, value in values.items()
        if isinstance(shape := tables.get(key), Table) and isinstance(value, dict)
        for name in value
    )


def _renamed(table: Table, key: str = "", name: str = "") -> Iterator[tuple[str, str]]:
    """RunSpec field -> key, for the fields whose key differs."""
    for item in table.fields.values():
        below_key, below_name = f"{key}{item.key}", f"{name}{item.name}"
        if below_key != below_name:
            yield below_name, below_key
        if isinstance(item.shape, Table):
            yield from _renamed(item.shape, f"{below_key}.", f"{below_name}.")
