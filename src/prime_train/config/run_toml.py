"""Reads run.toml, prime-train's own format: a RunSpec and every fault against the schema. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from prime_train.config.parsed_config import UNKNOWN_KEY, Fault, Reading
from prime_train.config.schema import Array, Field, OneOf, Shape, Table, table_of, walk_fields
from prime_train.config.validate import walk_document
from prime_train.spec import ENDLESS_STEPS, Data, Run, RunSpec, Source
from prime_train.spec.answers import hands_over_weights, launched_server
from prime_train.spec.audio import Audio
from prime_train.spec.clip_size import size_of
from prime_train.spec.command import CommandSpec
from prime_train.spec.rl import TaskSource
from prime_train.spec.server import ARGUMENTS, Inference, Server, inference_of
from prime_train.toml.document import Document, KeyPath, dotted

DIALECT = "prime-train"
ROOT = "run"
COMMAND = "command"
AUDIO = "audio"

# A run on clips lacks these tables, and has only these keys in some others.
_NOT_OF_AUDIO = ("model", "tokenizer", "rl", "tasks", "inference")
_KEYS_OF_AUDIO = {
    "batch": ("micro_batch", "global_batch", "start_batch", "ramp_steps"),
    "eval": ("interval_steps", "held_out_ratio"),
    "precision": ("compute", "tf32"),
}
_SOURCE_OF_AUDIO = ("path", "subset", "split", "count")
_DATA_OF_AUDIO = ("loader_workers", "sampling_probs")

# Field of `rollouts_of` -> key, in a run that learns from rewards.
_KEYS_OF_ROLLOUTS = {
    "rollout.ctx_tokens": "data.ctx_tokens",
    "rollout.batch_rollouts": "batch.global_batch",
    "rollout.group_size": "rl.group_size",
    "rollout.max_completion_tokens": "rl.answer_tokens",
    "rollout.temperature": "rl.temperature",
    "rollout.max_async_level": "rl.max_behind_steps",
    "rollout.max_inflight": "rl.concurrency",
}
_TRAINING_KEYS = {"max_steps": "counts optimizer steps", "seed": "seeds a training"}  # keys of [run]
_TRAINING_TABLES = (
    "audio",
    "rl",
    "tasks",
    "model",
    "data",
    "tokenizer",
    "batch",
    "optim",
    "schedule",
    "parallel",
    "checkpoint",
    "eval",
    "precision",
    "profile",
)


def schema() -> Table:
    """The legal keys of a run.toml, of any kind of run that trains."""
    return table_of(RunSpec)


def text_schema() -> Table:
    """`schema` for text, with tasks."""
    return schema()._replace(fields={key: item for key, item in schema().fields.items() if key != AUDIO})


def training_schema() -> Table:
    """`schema` of a run that neither learns from rewards nor has tasks: a server there needs the name of its model."""
    fields = dict(text_schema().fields)
    fields["inference"] = fields["inference"]._replace(shape=_named_server())
    return schema()._replace(fields=fields)


def rl_schema() -> Table:
    """`schema` of a run that learns from rewards: it has tasks, and no sources of text."""
    fields = dict(text_schema().fields)
    data = table_of(Data)
    sources = data.fields["sources"]._replace(default=(), required=False)
    fields["data"] = fields["data"]._replace(
        shape=Table({**data.fields, "sources": sources}, partial(Data, sources=())),
        default=Data(sources=()),
        required=False,
    )
    fields["tasks"] = fields["tasks"]._replace(shape=Array(table_of(TaskSource), 1), required=True)
    return Table(fields, partial(RunSpec, data=Data(sources=())))


def audio_schema() -> Table:
    """The legal keys with run.kind = "audio", which trains on clips."""
    fields = {key: item for key, item in schema().fields.items() if key not in _NOT_OF_AUDIO}
    kind = table_of(Source).fields["kind"]._replace(shape=OneOf(("audio", "chirps")))
    source = _narrow(table_of(Source), _SOURCE_OF_AUDIO, kind=kind)
    sources = table_of(Data).fields["sources"]._replace(shape=Array(source, 1))
    for name, keys in _KEYS_OF_AUDIO.items():
        table = fields[name].shape
        assert isinstance(table, Table)
        fields[name] = fields[name]._replace(shape=_narrow(table, keys))
    fields["data"] = fields["data"]._replace(shape=_narrow(table_of(Data), _DATA_OF_AUDIO, sources=sources))
    return schema()._replace(fields=fields)


def _narrow(table: Table, keys: tuple[str, ...], **others: Field) -> Table:
    """The table with these keys alone, and `others`."""
    return table._replace(fields={key: table.fields[key] for key in keys} | others)


def _named_server() -> Table:
    """The keys of [inference], with `model` required."""
    server = table_of(Server)
    return server._replace(fields={**server.fields, "model": server.fields["model"]._replace(required=True)})


def serving_schema() -> Table:
    """The legal keys of a run.toml that only serves: run.kind = "serve"."""
    kept = {key: item for key, item in table_of(Run).fields.items() if key not in _TRAINING_KEYS}
    fields = {key: schema().fields[key] for key in ("run", "inference", "prime_train")}
    fields["run"] = fields["run"]._replace(shape=Table(kept, partial(Run, max_steps=ENDLESS_STEPS)))
    fields["inference"] = fields["inference"]._replace(shape=_named_server(), required=True)
    return Table(fields, partial(RunSpec, data=Data(sources=())))


def command_schema() -> Table:
    """The legal keys of a run.toml that supervises a command: run.kind = "command". run.max_steps is optional."""
    kept = {key: item for key, item in table_of(Run).fields.items() if key != "seed"}
    kept["max_steps"] = kept["max_steps"]._replace(default=ENDLESS_STEPS, required=False)
    fields = {"run": schema().fields["run"]._replace(shape=Table(kept, partial(Run, max_steps=ENDLESS_STEPS)))}
    doc = 'The trainer of a run with run.kind = "command".'
    fields[COMMAND] = Field(COMMAND, COMMAND, table_of(CommandSpec), doc, None, required=True)
    fields["prime_train"] = schema().fields["prime_train"]
    return Table(fields, partial(RunSpec, data=Data(sources=())))


def may_be_run_toml(values: Mapping[str, object]) -> bool:
    """Whether the values look like a run.toml, even if the name of one table is misspelt."""
    run, data = values.get("run"), values.get("data")
    if not isinstance(run, dict):
        return isinstance(data, dict) and "sources" in data and "ctx_tokens" in data
    if "kind" in run or "max_steps" in run or isinstance(data, dict):
        return True
    # Other programs have a table [run] with a name, but none of these tables beside it.
    return "name" in run and any(isinstance(values.get(table), dict) for table in _TRAINING_TABLES)


def read(text: str, path: str) -> Reading:
    """The reading of a run.toml. With faults it still has a `run`, if defaults can replace the values."""
    return read_document(Document.parse(text, path))


def read_document(document: Document) -> Reading:
    """`read` for a parsed text. In a text that is not valid TOML, the valid statements are judged."""
    kind = _kind(document.values)
    serves = kind in ("serve", COMMAND)  # or supervises a command: it trains nothing that the file describes
    of_text = text_schema if "tasks" in document.values else training_schema
    roots = {"serve": serving_schema, COMMAND: command_schema, "rl": rl_schema, AUDIO: audio_schema}
    root = roots.get(kind, of_text)()
    run, faults = walk_document(root, document, ROOT)
    if serves:
        faults = [_explain_training_key(fault, kind) for fault in faults]
    else:
        faults = [_explain_other_kind(fault, kind) for fault in faults]
    if run is not None and kind == AUDIO:
        run = _fill_audio(run)
    if run is not None and run.command is not None:
        run = replace(run, parallel=replace(run.parallel, processes=run.command.processes))
    server = None if run is None else launched_server(run)
    if run is not None and server is not None:
        run = replace(run, inference=_infer(run, server))
    has_all = not serves and kind != AUDIO
    keys = {".".join(name): ".".join(key) for key, name, _ in walk_fields(root) if not has_all or key != name}
    keys |= _keys_of_inference(document.values)
    keys |= _KEYS_OF_ROLLOUTS if kind == "rl" else {}
    return Reading(document, DIALECT, "", ROOT, run, tuple(faults), keys, all_fields=has_all)


def _fill_audio(run: RunSpec) -> RunSpec:
    """The run with [audio], where a sequence has the tokens that a clip has, for rules and estimate."""
    audio = run.audio or Audio()
    return replace(run, audio=audio, data=replace(run.data, ctx_tokens=max(8, size_of(audio).all_tokens)))


def _infer(run: RunSpec, server: Server) -> Inference:
    """The server for rules and estimate. One that gets the trainer's weights serves them, for whole sequences."""
    inference = inference_of(server)
    if not hands_over_weights(run):
        return inference
    return inference._replace(model_name=server.model or None, ctx_tokens=server.ctx_tokens or run.data.ctx_tokens)


def _kind(values: Mapping[str, Any]) -> str:
    """run.kind, or "" if it is not a string."""
    run = values.get("run")
    kind = run.get("kind") if isinstance(run, dict) else None
    return kind if isinstance(kind, str) else ""


def _explain_training_key(fault: Fault, kind: str) -> Fault:
    """Replaces the fault of an unknown key that is legal in a run.toml that trains."""
    purpose = None
    match fault.key:
        case (str(table),) if table in _TRAINING_TABLES:
            purpose = "configures training"
        case ("run", str(key)):
            purpose = _TRAINING_KEYS.get(key)
    if fault.code != UNKNOWN_KEY or purpose is None:
        return fault
    name = dotted(fault.key)
    does = "trains nothing" if kind == "serve" else "leaves the training to the program of [command]"
    what = f'{name} {purpose}, and run.kind = "{kind}" {does}'
    return Fault(UNKNOWN_KEY, fault.key, what, 'take it out, or run.kind = "pretrain"', {name: None})


def _explain_other_kind(fault: Fault, kind: str) -> Fault:
    """Replaces the fault for a key that only another kind knows: text, or clips."""
    if fault.code != UNKNOWN_KEY or not _is_legal(fault.key):
        return fault
    name = dotted(fault.key)
    if kind == AUDIO:
        what, fix = f'{name} is for text, and run.kind = "audio" trains on clips', 'run.kind = "pretrain"'
    else:
        what, fix = f'{name} is for clips, and run.kind is "{kind or "pretrain"}"', 'run.kind = "audio"'
    return Fault(UNKNOWN_KEY, fault.key, what, f"take it out, or {fix}", {name: None})


def _is_legal(key: KeyPath) -> bool:
    """Whether some kind of run.toml knows a key."""
    shape: Shape | None = schema()
    for part in key:
        if isinstance(shape, Array):
            shape = shape.item
            continue
        item = shape.fields.get(str(part)) if isinstance(shape, Table) else None
        shape = None if item is None else item.shape
    return shape is not None


def count_known_keys(values: Mapping[str, Any]) -> int:
    """The number of keys, directly in a table, that are keys of a run.toml."""
    tables = {key: item.shape for key, item in schema().fields.items()}
    return sum(
        name in shape.fields
        for key, value in values.items()
        if isinstance(shape := tables.get(key), Table) and isinstance(value, dict)
        for name in value
    )


def _keys_of_inference(values: Mapping[str, Any]) -> dict[str, str]:
    """Field of RunSpec.inference -> key in [inference]; an argument has its name as written in the file."""
    server = values.get("inference")
    given = server.get("arguments") if isinstance(server, dict) else None
    written = {str(key).replace("-", "_"): key for key in given} if isinstance(given, dict) else {}
    own = ("ctx_tokens", "tensor_parallel", "gpu_memory_fraction", "dtype", "enforce_eager", "host", "port")
    keys = {field: f"arguments.{written.get(argument, argument)}" for field, argument in ARGUMENTS.items()}
    keys |= {name: name for name in own} | {"model_name": "model"}
    return {f"inference.{field}": f"inference.{key}" for field, key in keys.items()}
