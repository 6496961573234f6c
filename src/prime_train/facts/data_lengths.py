"""Measures the local data of a run, rows and tokens per row, in a child with the run's interpreter.

The child reads for about one second for data of any size. Downloads nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from prime_train.facts.facts import ChatTrial, DataLengths, NotKnown
from prime_train.facts.files import SUFFIXES, find_data_files
from prime_train.facts.model_positions import find_file
from prime_train.facts.probe_process import run_probe, script
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of, tokenizer_name

BUDGET_S = 1.0  # for reading and counting all sources
DEADLINE_S = 10.0  # with the imports, on a cold disk
_SUFFIXES = (".jsonl", ".parquet", ".txt")
_MAX_FILES = 10_000
# Where an environment's arguments name its data. Source: verifiers, load_environment of its own environments.
_DATA_ARGUMENTS = ("dataset_path", "dataset_name", "dataset", "data_path", "data_dir")
# Columns with the prompt, as verifiers and TRL read them, and columns with a whole conversation for fine-tuning.
_PROMPT_COLUMNS = ("prompt", "question", "problem", "messages", "instruction", "text")
_TEXT_COLUMNS = ("messages", "text", "prompt")


class LocalData(NamedTuple):
    """Local data, its RunSpec field, and its text columns; the first one that a row has is used. Tokens have none.

    `needs_column`: a row without any of the columns is a fault, because the trainer reads no other.
    """

    field: str
    path: str
    columns: tuple[str, ...]
    has_tokens: bool = False
    needs_column: bool = False


def lengths(run: RunSpec, python: str, deadline_s: float = DEADLINE_S) -> tuple[DataLengths, ...] | NotKnown:
    """One entry for each local dataset of the run."""
    named = list(local_data(run))
    if not named:
        return ()
    name = tokenizer_name(run)
    tokenizer = find_file(name, "tokenizer.json") if name else None
    sources = [{"files": _files(data), **data._asdict()} for data in named]
    request = {"tokenizer": str(tokenizer or ""), "sources": sources, "budget_s": BUDGET_S, "chats_with": ""}
    answer = run_probe([python, script("data_lengths_program")], deadline_s, stdin=json.dumps(request))
    if isinstance(answer, NotKnown):
        return answer
    if answer.code != 0:
        return NotKnown(f"{python} could not read the data: {answer.last_line or f'exit code {answer.code}'}")
    measured = json.loads(answer.out.splitlines()[-1])
    return tuple(DataLengths(data.field, data.path, **found) for data, found in zip(named, measured, strict=True))


def try_chats(run: RunSpec, python: str, deadline_s: float = DEADLINE_S) -> tuple[ChatTrial, ...] | NotKnown:
    """A trial of the first chats of each local source of a fine-tuning, with the tokenizer folder of the run.

    The child may run a template without an end, so it is another one than that of `lengths`.
    """
    named = [data for data in local_data(run) if data.needs_column] if run.run.kind == "sft" else []
    if not named or run.tokenizer.path is None:  # a tokenizer that is trained has a template for every chat
        return ()
    sources = [{"files": _files(data), **data._asdict()} for data in named]
    request = {"sources": sources, "budget_s": BUDGET_S, "chats_with": run.tokenizer.path}
    answer = run_probe([python, script("data_lengths_program")], deadline_s, stdin=json.dumps(request))
    if isinstance(answer, NotKnown):
        return answer
    if answer.code != 0:
        return NotKnown(f"{python} could not read the chats: {answer.last_line or f'exit code {answer.code}'}")
    tried = json.loads(answer.out.splitlines()[-1])
    return tuple(ChatTrial(data.field, **found) for data, found in zip(named, tried, strict=True))


def local_data(run: RunSpec) -> Iterator[LocalData]:
    """The datasets of a run that are on this machine."""
    parts = prime_rl_of(run)
    for number, source in enumerate(run.data.sources):
        if source.path and Path(source.path).exists() and source.kind in ("files", "hf-dataset"):
            of_chats = (source.messages_field, "prompt")
            columns = of_chats if run.run.kind == "sft" else (source.text_field,)
            yield LocalData(f"data.sources.{number}.path", source.path, columns, needs_column=True)
        elif source.path and source.kind == "tokens":
            yield LocalData(f"data.sources.{number}.path", source.path, (), has_tokens=True)
    if parts.finetune is not None and parts.finetune.data_name and Path(parts.finetune.data_name).exists():
        yield LocalData("finetune.data_name", parts.finetune.data_name, _TEXT_COLUMNS)
    for field, path in _arguments_with_data(run):
        if os.sep in path and Path(path).exists():
            yield LocalData(field, path, _PROMPT_COLUMNS)


def named_paths(run: RunSpec) -> Iterator[tuple[str, str]]:
    """(RunSpec field, path) of data that can only be on this machine: a name of the hub is neither absolute nor has
    a dot in front, nor the suffix of a data file."""
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


def _files(data: LocalData) -> list[str]:
    """The data files at a path, absolute, in order."""
    if data.has_tokens:
        found = islice(find_data_files(data.path, SUFFIXES["tokens"]), _MAX_FILES)
        return sorted(str(file.absolute()) for file in found)
    named = Path(data.path).absolute()
    if named.is_file():
        return [str(named)]
    below = (Path(where, name) for where, _, names in os.walk(named) for name in names if name.endswith(_SUFFIXES))
    return sorted(str(file) for file in islice(below, _MAX_FILES))
