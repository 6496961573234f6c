"""Measures the local data of a run, rows and tokens per row, in a child with the run's interpreter.

The child reads for about one second for data of any size. Downloads nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.core import outside
from prime_train.core.outside import MODEL_BYTES
from prime_train.facts.facts import ChatTrial, DataLengths, ModelContext, NotKnown
from prime_train.facts.files import SUFFIXES, find_data_files
from prime_train.facts.find_files import EndlessSearchError, FileSearch
from prime_train.facts.probe_process import read_answer, run_probe, script
from prime_train.spec import RunSpec, Source
from prime_train.spec.answers import prime_rl_of, tokenizer_name
from prime_train.spec.decoder_size import scaled_positions

# The keys that vLLM reads; it uses the smallest value. Source: vLLM 0.10, config/__init__.py, _get_and_verify_max_len.
_KEYS = (
    *("max_position_embeddings", "n_positions", "max_target_positions"),
    *("max_seq_len", "seq_length", "max_sequence_length"),
)


def read_contexts(names: Iterable[str]) -> tuple[ModelContext, ...] | NotKnown:
    """One entry for each model with a local config.json that has its positions."""
    wanted = sorted(set(names))
    found = [context for name in wanted if (context := _read(name)) is not None]
    if wanted and not found:
        return NotKnown(f"{', '.join(wanted)}: no config.json on this machine has the positions")
    return tuple(found)


def find_file(name: str, file: str) -> Path | None:
    """A file of a model, in the folder `name` or in the hub's cache; None if it is in neither."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder / file if (folder / file).is_file() else None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        there = try_to_load_from_cache(name, file, cache_dir=os.environ.get("HF_HUB_CACHE"))
    except HFValidationError:
        return None
    return Path(there) if isinstance(there, str) else None


def _read(name: str) -> ModelContext | None:
    config = find_file(name, "config.json")
    if config is None:
        return None
    try:
        values = outside.read_json(config, MODEL_BYTES)
    except (OSError, ValueError):
        return None  # another rule reports an unreadable folder
    if not isinstance(values, dict):
        return None
    text = values.get("text_config")
    parts = [values, text] if isinstance(text, dict) else [values]
    tokens = [part[key] for part in parts for key in _KEYS if _is_count(part.get(key))]
    if not tokens:
        return None
    scaled = [scaling for part in parts if (scaling := _scaling(part)) is not None]
    limits = {scaled_positions(min(tokens), scaling) for scaling in scaled}
    kinds = "".join(str(part.get("model_type")) for part in parts)
    if "gemma3" in kinds:  # its positions include the scaling already (vLLM, _get_and_verify_max_len)
        limits = {min(tokens)}
    return ModelContext(name, min(tokens), bool(scaled), config, limits.pop() if len(limits) == 1 and scaled else None)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _scaling(part: dict[str, Any]) -> dict[str, Any] | None:
    """The rope scaling that extends the positions, or None."""
    for key in ("rope_scaling", "rope_parameters"):  # the latter since transformers 5
        scaling = part.get(key)
        if isinstance(scaling, dict) and scaling:
            kind = scaling.get("rope_type", scaling.get("type"))
            nested = any(isinstance(below, dict) for below in scaling.values())
            if kind not in ("default", None) or "factor" in scaling or nested:
                return scaling
    return None


BUDGET_S = 1.0  # for reading and counting all sources
DEADLINE_S = 10.0  # with the imports, on a cold disk
_SUFFIXES = (".jsonl", ".parquet", ".txt")
_CHAT_SUFFIXES = (".jsonl", ".parquet")
_MAX_FILES = 10_000
# Where an environment's arguments name its data. Source: verifiers, load_environment of its own environments.
_DATA_ARGUMENTS = ("dataset_path", "dataset_name", "dataset", "data_path", "data_dir")
# Columns with the prompt, as verifiers and TRL read them, and columns with a whole conversation for fine-tuning.
_PROMPT_COLUMNS = ("prompt", "question", "problem", "messages", "instruction", "text")
_TEXT_COLUMNS = ("messages", "text", "prompt")


class ChatSplit(NamedTuple):
    """What decides which chats of a source are held out, and which of their tokens the model learns."""

    ctx_tokens: int
    held_out_ratio: float
    seed: int
    source: int


class LocalData(NamedTuple):
    """Local data, its RunSpec field, and its text columns; the first one that a row has is used. Tokens have none.

    `path` is a file, a folder or a glob. `needs_column`: a row without any of the columns is a fault, because the
    trainer reads no other. `split`: how the trainer holds out chats of the files, in the order that they have here.
    """

    field: str
    path: str
    columns: tuple[str, ...]
    suffixes: tuple[str, ...] = _SUFFIXES
    has_tokens: bool = False
    needs_column: bool = False
    has_chats: bool = False
    split: ChatSplit | None = None


def lengths(run: RunSpec, python: str, deadline_s: float = DEADLINE_S) -> tuple[DataLengths, ...] | NotKnown:
    """One entry for each local dataset of the run."""
    try:
        named = find_files(local_data(run))
    except EndlessSearchError as error:
        return NotKnown(error.what)
    if not named:
        return ()
    name = tokenizer_name(run)
    tokenizer = find_file(name, "tokenizer.json") if name else None
    measured = _read_data(python, named, deadline_s, {"tokenizer": str(tokenizer or ""), "chats_with": ""})
    if isinstance(measured, NotKnown):
        return measured
    return tuple(DataLengths(data.field, data.path, **found) for data, found in zip(named, measured, strict=True))


def try_chats(run: RunSpec, python: str, deadline_s: float = DEADLINE_S) -> tuple[ChatTrial, ...] | NotKnown:
    """A trial of the first chats of each local source of a fine-tuning, with the tokenizer folder of the run.

    The child may run a template without an end, so it is another one than that of `lengths`.
    """
    try:
        named = find_files(data for data in local_data(run) if data.has_chats)
    except EndlessSearchError as error:
        return NotKnown(error.what)
    if not named or run.tokenizer.path is None:  # a tokenizer that is trained has a template for every chat
        return ()
    tried = _read_data(python, named, deadline_s, {"chats_with": run.tokenizer.path})
    if isinstance(tried, NotKnown):
        return tried
    return tuple(ChatTrial(data.field, **found) for data, found in zip(named, tried, strict=True))


class FirstRows(NamedTuple):
    """The first rows of a file, each as JSON. `fault`: what is wrong with the file."""

    rows: tuple[str, ...]
    fault: str = ""


def read_first_rows(path: Path, most: int, python: str) -> FirstRows | NotKnown:
    """The first rows of a data file, read by a child; NotKnown if its interpreter cannot read such a file."""
    request = {"look_at": str(path.absolute()), "rows": most}
    answer = read_answer(python, [python, script("data_lengths_program")], DEADLINE_S, request)
    if isinstance(answer, NotKnown):
        return answer
    if lacks := answer.get("lacks"):
        return NotKnown(f"{python} has no {lacks}, which reads {path.suffix} files: uv pip install {lacks}")
    return FirstRows(tuple(map(str, answer.get("rows", ()))), str(answer.get("fault", "")))


def find_files(found: Iterable[LocalData]) -> dict[LocalData, list[str]]:
    """The files of each of the data that has some: DAT003 reports a path without any. Raises EndlessSearchError."""
    search = FileSearch()
    return {data: files for data in found if (files := _files(data, search))}


def _read_data(python: str, named: dict[LocalData, list[str]], deadline_s: float, request: dict[str, str]) -> Any:
    """What the child finds in each of the data; NotKnown if it cannot read them."""
    sources = [{"files": files, **data._asdict()} for data, files in named.items()]
    text = json.dumps({"sources": sources, "budget_s": BUDGET_S, **request})
    answer = run_probe([python, script("data_lengths_program")], deadline_s, stdin=text)
    if isinstance(answer, NotKnown):
        return answer
    if answer.code != 0:
        what = "chats" if request["chats_with"] else "data"
        return NotKnown(f"{python} could not read the {what}: {answer.last_line or f'exit code {answer.code}'}")
    return json.loads(answer.out.splitlines()[-1])


def local_data(run: RunSpec) -> Iterator[LocalData]:
    """The datasets of a run that are on this machine."""
    parts = prime_rl_of(run)
    for number, source in enumerate(run.data.sources):
        at = f"data.sources.{number}.path"
        yield from _chats(run, number, at) if run.run.kind == "sft" else _documents(source, at)
    for number, one in enumerate(run.eval.sets):
        for place, source in enumerate(one.sources):
            yield from _documents(source, f"eval.sets.{number}.sources.{place}.path")
    if parts.finetune is not None and parts.finetune.data_name and Path(parts.finetune.data_name).exists():
        yield LocalData("finetune.data_name", parts.finetune.data_name, _TEXT_COLUMNS)
    for field, path in _arguments_with_data(run):
        if os.sep in path and Path(path).exists():
            yield LocalData(field, path, _PROMPT_COLUMNS)


def _documents(source: Source, at: str) -> Iterator[LocalData]:
    """The text or the tokens of a source that is on this machine."""
    if source.path and source.kind == "tokens":
        yield LocalData(at, source.path, (), SUFFIXES["tokens"], has_tokens=True)
    elif path := _local_path(source):
        yield LocalData(at, path, (source.text_field,), needs_column=True)


def _chats(run: RunSpec, number: int, at: str) -> Iterator[LocalData]:
    """The chats of a source that is on this machine."""
    source = run.data.sources[number]
    columns = (source.messages_field, "prompt")
    if path := _local_path(source):
        found = LocalData(at, path, columns, _CHAT_SUFFIXES, needs_column=True, has_chats=True)
        split = ChatSplit(run.data.ctx_tokens, run.eval.held_out_ratio, run.run.seed, number)
        # The library decides the order of the rows of a dataset, so the split of one is not known here.
        yield found._replace(split=split) if source.kind == "files" else found


def _local_path(source: Source) -> str:
    """The path of a source that is on this machine, a glob too; "" for other sources."""
    path = source.path or ""
    if source.kind == "hf-dataset":
        return path if Path(path).exists() else ""
    return path if source.kind == "files" else ""


def named_paths(run: RunSpec) -> Iterator[tuple[str, str]]:
    """(RunSpec field, path) of data that can only be on this machine.

    A name of the hub is neither absolute nor has a dot in front, nor the suffix of a data file.
    """
    finetune = prime_rl_of(run).finetune
    named = [("finetune.data_name", finetune.data_name)] if finetune is not None and finetune.data_name else []
    for field, path in (*named, *_arguments_with_data(run)):
        if path.startswith(("/", "./", "../", "~")) or (os.sep in path and path.endswith(_SUFFIXES)):
            yield field, str(Path(path).expanduser())


def _arguments_with_data(run: RunSpec) -> Iterator[tuple[str, str]]:
    """(RunSpec field, value) of the arguments of training environments that name data."""
    parts = prime_rl_of(run)
    trained = parts.environments.train if parts.environments is not None else None
    for number, environment in enumerate(trained or ()):
        arguments = environment.args or {}
        tables = {"args": arguments, "args.taskset": arguments.get("taskset")}  # newer generations have a task set
        for where, table in tables.items():
            for name in _DATA_ARGUMENTS:
                path = table.get(name) if isinstance(table, dict) else None
                if isinstance(path, str):
                    yield f"environments.train.{number}.{where}.{name}", path


def _files(data: LocalData, search: FileSearch) -> list[str]:
    """The data files at a path, absolute, in the order in which the trainer reads them."""
    named = Path(data.path).absolute()
    if named.is_file() and not data.has_tokens:
        return [str(named)]
    found = islice(find_data_files(data.path, data.suffixes, search), _MAX_FILES)
    return [str(file) for file in sorted(file.absolute() for file in found if file.is_file())]  # a pipe has no end
