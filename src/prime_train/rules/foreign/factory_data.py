"""The data sets of LLaMA-Factory, where its dataset_info.json is there: names, files and columns. Runs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.config.foreign.follow import find_file
from prime_train.config.foreign.values import MOST_BYTES, ForeignPart
from prime_train.config.parsed_config import Fault, Reading
from prime_train.core import outside
from prime_train.core.findings import Severity
from prime_train.rules.rule import file_rule
from prime_train.toml.did_you_mean import nearest

_INFO = "dataset_info.json"
_KEYS = ("dataset", "eval_dataset")
_ELSEWHERE = ("hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")  # instead of file_name
_MOST_NAME = 255  # of a file
_CHAT = {"messages": "conversations"}
# Format -> the columns of each row, and their names without `columns`.
_READ = {
    "alpaca": {"prompt": "instruction", "query": "input", "response": "output"},
    "sharegpt": _CHAT,
    "openai": _CHAT,
}


class NamedData(NamedTuple):
    """A data set that a training names. `entry`: what dataset_info.json has for it; None for nothing."""

    part: ForeignPart
    key: str
    name: str
    info: str
    known: tuple[str, ...]
    entry: Any


@file_rule("LLF035", Severity.ERROR)
def undefined_dataset(reading: Reading) -> Iterator[Fault]:
    """A data set of LLaMA-Factory has an entry in dataset_info.json.

    LLaMA-Factory refuses a name without one before it loads the model

    The file is looked for in `dataset_dir`, which is data if nothing sets it. Without the file nothing is judged.

    Source: LLaMA-Factory@ff6d4d12e:src/llamafactory/data/parser.py:126.

    Bad:
        # file train.yaml
        model_name_or_path: Qwen/Qwen3-4B
        stage: sft
        do_train: true
        finetuning_type: lora
        template: qwen3
        dataset: identity,my_chat
        # file data/dataset_info.json
        {"identity": {"hf_hub_url": "llamafactory/identity"}, "my_chats": {"hf_hub_url": "me/my_chats"}}
    Good:
        # file train.yaml
        model_name_or_path: Qwen/Qwen3-4B
        stage: sft
        do_train: true
        finetuning_type: lora
        template: qwen3
        dataset: identity,my_chats
        # file data/dataset_info.json
        {"identity": {"hf_hub_url": "llamafactory/identity"}, "my_chats": {"hf_hub_url": "me/my_chats"}}
    """
    for data in _named_data(reading):
        if data.entry is None:
            meant = nearest(data.name, data.known)
            fix = f"{data.key}: {meant}" if meant else f"add an entry {data.name} to {data.info}"
            yield _fault("LLF035", data, f"{data.name} is not in {data.info}", fix)


@file_rule("LLF036", Severity.ERROR)
def dataset_without_its_columns(reading: Reading) -> Iterator[Fault]:
    """A file of a data set of LLaMA-Factory is there, and its rows have the columns that dataset_info.json maps.

    LLaMA-Factory ends with an error while it reads the data

    Without `columns`, rows of alpaca have instruction, input and output, and those of the other formats conversations.
    A file of JSON or JSON Lines is read if it is small; a column that one row has is enough.

    Source: LLaMA-Factory@ff6d4d12e:src/llamafactory/data/loader.py:78, data/converter.py:86, data/parser.py:29.

    Bad:
        # file train.yaml
        model_name_or_path: Qwen/Qwen3-4B
        stage: sft
        do_train: true
        finetuning_type: lora
        template: qwen3
        dataset: mine
        # file data/dataset_info.json
        {"mine": {"file_name": "mine.json"}}
        # file data/mine.json
        [{"question": "1 + 1?", "answer": "2"}]
    Good:
        # file train.yaml
        model_name_or_path: Qwen/Qwen3-4B
        stage: sft
        do_train: true
        finetuning_type: lora
        template: qwen3
        dataset: mine
        # file data/dataset_info.json
        {"mine": {"file_name": "mine.json", "columns": {"prompt": "question", "response": "answer"}}}
        # file data/mine.json
        [{"question": "1 + 1?", "answer": "2"}]
    """
    for data in _named_data(reading):
        file_name = data.entry.get("file_name") if isinstance(data.entry, dict) else None
        if not isinstance(file_name, str) or not data.entry.keys().isdisjoint(_ELSEWHERE):
            continue
        if "\0" in file_name or len(file_name) > _MOST_NAME:
            continue
        path = Path(data.info).parent / file_name
        if not path.exists():
            yield _fault("LLF036", data, f"{path}, the file of {data.name}, is not there", f"{data.info}: file_name")
            continue
        columns = _columns_of(path)
        absent = [] if columns is None else [name for name in _wanted(data.entry) if name not in columns]
        if absent and columns is not None:
            what = f"no row of {path} has {', '.join(absent)}: the columns are {', '.join(sorted(columns)[:8])}"
            yield _fault("LLF036", data, what, f"{data.info}: columns of {data.name}")


def _fault(code: str, data: NamedData, what: str, fix: str) -> Fault:
    return Fault(code, (*data.part.at, data.key), what, fix, document=data.part.document)


def _named_data(reading: Reading) -> Iterator[NamedData]:
    for part in reading.foreign or ():
        folder = part.values.get("dataset_dir", "data") if part.format == "llama-factory" else None
        if not isinstance(folder, str) or folder == "ONLINE" or part.moved:
            continue
        info = find_file(f"{folder.rstrip('/')}/{_INFO}", part.document.path)
        entries = None if info is None else _read(info)
        if info is None or not isinstance(entries, dict):
            continue
        for key, name in _names_of(part):
            yield NamedData(part, key, name, info, tuple(entries), entries.get(name))


def _names_of(part: ForeignPart) -> Iterator[tuple[str, str]]:
    for key in _KEYS:
        named = part.values.get(key)
        for name in named.split(",") if isinstance(named, str) else named if isinstance(named, list) else ():
            if isinstance(name, str) and name.strip():
                yield key, name.strip()


def _read(path: str) -> Any:
    try:
        return outside.read_json(Path(path), MOST_BYTES)
    except (OSError, ValueError):
        return None


def _wanted(entry: Mapping[str, Any]) -> list[str]:
    """The columns that the converter of an entry's format reads from every row."""
    usual, columns = _READ.get(entry.get("formatting", "alpaca"), {}), entry.get("columns")
    mapped = columns if isinstance(columns, dict) else usual
    pair = ("chosen", "rejected") if usual and entry.get("ranking") else ()
    names = [*(name for name in usual if not (pair and name == "response")), *pair]
    return [column for column in map(mapped.get, names) if isinstance(column, str)]


def _columns_of(path: Path) -> set[str] | None:
    """The columns of all rows of a file of JSON or JSON Lines; None for another file, or one that is large."""
    if path.suffix not in (".json", ".jsonl"):
        return None
    try:
        text = outside.read_text(path, MOST_BYTES)
        texts = [text] if text.lstrip().startswith("[") else [line for line in text.splitlines() if line.strip()]
        values = [outside.parse_json(each) for each in texts]
    except (OSError, ValueError):
        return None
    rows = values[0] if len(values) == 1 and isinstance(values[0], list) else values
    known = [set(row) for row in rows if isinstance(row, dict)]
    return set().union(*known) if known else None
