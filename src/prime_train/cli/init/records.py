"""Looks at the first records of local data: which fields they have, and whether they are chats or text."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prime_train.choose.bundled import draft_bundled, first_length
from prime_train.choose.wishes import ChosenData, Concession, Task, Wishes
from prime_train.config import detect
from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import LINE_BYTES
from prime_train.core.units import counted
from prime_train.facts.data_lengths import lengths
from prime_train.facts.facts import NotKnown
from prime_train.facts.files import SUFFIXES, find_data_files
from prime_train.facts.find_files import EndlessSearchError, FileSearch

_RECORDS = 32
_TEXTS = ("text", "content", "document")
_CHATS = ("messages", "conversations", "conversation")
_SHIPPED = ("python-stdlib",)
_KINDS = {suffix: kind for kind, suffixes in SUFFIXES.items() for suffix in suffixes}

Seen = tuple[ChosenData, tuple[str, ...]]


def look_at_data(named: str, task: Task, subset: str = "") -> Seen:
    """The source that --data names, and lines about it. Raises UserError for what the task cannot train on."""
    if named in _SHIPPED:
        return ChosenData("python-stdlib"), ()
    path = Path(named).expanduser()
    if not path.exists() and not set(named) & set("*?["):
        return _name_on_hub(named, subset)
    try:
        found = find_data_files(str(path), None, FileSearch())
        first = next((file for file in found if file.suffix in _KINDS), None)
    except EndlessSearchError as error:
        raise _refuse(named, error.what, "the first records are looked at", "name a folder with less in it") from None
    if first is None:
        raise _refuse(
            named, "it has no file of a known format", f"the endings are {', '.join(_KINDS)}", "convert it to .jsonl"
        )
    if first.suffix == ".jsonl":
        return _look_at_lines(named, first, task)
    if task == "sft" and first.suffix != ".parquet":
        raise _refuse(
            named, f"{first.name} has no chats", "sft trains on the answers of chats", "a .jsonl with messages"
        )
    kind = "tokens" if _KINDS[first.suffix] == "tokens" else "files"
    return ChosenData(kind, named), (f"data: {first.name} is not looked into",)


def _name_on_hub(named: str, subset: str) -> Seen:
    if named.count("/") == 1 and not named.startswith((".", "/", "~")) and Path(named).suffix not in _KINDS:
        return ChosenData("hf-dataset", named, subset), (f"data: {named} on the hub; its records are not looked at",)
    raise _refuse(named, "there is no such file", "it is no name of the hub either", "correct the path")


def _look_at_lines(named: str, file: Path, task: Task) -> Seen:
    records = list(_read_records(named, file))
    if not records:
        raise _refuse(named, f"{file.name} is empty", "there is nothing to train on", "name another file")
    fields = [name for name in records[0] if all(name in record for record in records)]
    shown = ", ".join(fields) or "no field in common"
    line = f"data: the first {counted(len(records), 'record')} of {file.name} have {shown}"
    chat = next((name for name in (*_CHATS, *fields) if all(_is_chat(record.get(name)) for record in records)), None)
    is_pair = all(isinstance(record.get(name), str) for record in records for name in ("prompt", "completion"))
    if task == "sft" and (chat is not None or is_pair):
        field = "" if chat in (None, "messages") else str(chat)
        return ChosenData("files", named, field=field), (f"{line}: {'chats' if chat else 'prompts and completions'}",)
    text = next(
        (name for name in (*_TEXTS, *fields) if all(isinstance(record.get(name), str) for record in records)), None
    )
    if task == "pretrain" and text is not None:
        return ChosenData("files", named, field="" if text == "text" else text), (f"{line}: text in {text}",)
    wanted = "a list of messages with role and content, or prompt and completion" if task == "sft" else "a text"
    other = "they are chats: --task sft" if chat and task == "pretrain" else "they are texts: --task pretrain"
    raise _refuse(
        named,
        f"the first records of {file.name} have {shown}",
        f"{task} reads {wanted}",
        other if (chat and task == "pretrain") or (text and task == "sft") else f"convert them to {wanted}",
    )


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, dict) and "role" in turn and "content" in turn for turn in value)
    )


def _read_records(named: str, file: Path) -> Iterator[Mapping[str, Any]]:
    """The first records of a file of JSON lines. Raises UserError for a line that is none."""
    try:
        with outside.open_regular(file) as lines:
            for number in range(1, _RECORDS + 1):
                line = lines.readline(LINE_BYTES + 1)
                if not line:
                    return
                yield _read_record(named, file, number, line)
    except OSError as error:
        raise _refuse(
            named, f"{file.name} cannot be read: {error.strerror}", "it is looked at", "see `ls -l`"
        ) from None


def _read_record(named: str, file: Path, number: int, line: bytes) -> Mapping[str, Any]:
    what = "is longer than a megabyte"
    if len(line) <= LINE_BYTES:
        try:
            record = outside.parse_json(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            return record
        what = "is no JSON object"
    why = "each line of a .jsonl file is one record"
    raise _refuse(named, f"line {number} of {file.name} {what}", why, f"correct line {number}, or convert the file")


def _refuse(named: str, what: str, why: str, fix: str) -> UserError:
    return UserError(what, f"--data {named}", why, fix, ExitCode.FINDINGS)


def count_tokens(wishes: Wishes) -> Wishes:
    """The wishes with rows and longest tokens of local data, where they can be counted within a second."""
    if wishes.data is None or wishes.data.kind != "files":
        return wishes
    run = detect.read(draft_bundled(wishes, Concession(False, first_length(wishes))).text(), "run.toml").run
    found = None if run is None else lengths(run, sys.executable)
    if found is None or isinstance(found, NotKnown) or not found:
        return wishes
    counted_data = wishes.data._replace(rows=found[0].rows, longest_tokens=found[0].longest_tokens)
    return dataclasses.replace(wishes, data=counted_data)
