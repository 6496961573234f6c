"""Looks at the first records of local data: which fields they have, and whether they are chats or text."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prime_train.choose.bundled import draft_bundled, first_length
from prime_train.choose.wishes import ChosenData, Concession, Task, Wishes
from prime_train.config import detect
from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import LINE_BYTES
from prime_train.core.units import counted
from prime_train.facts.data_lengths import lengths, read_first_rows
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
    if first.suffix in (".jsonl", ".parquet"):
        records = _read_lines(named, first) if first.suffix == ".jsonl" else _read_table(named, first)
        if isinstance(records, NotKnown):
            return ChosenData("files", named), (f"data: {first.name} is not looked into: {records.reason}",)
        return _judge_records(named, first, records, task)
    if task == "sft":
        raise _refuse(
            named, f"{first.name} has no chats", "sft trains on the answers of chats", "a .jsonl with messages"
        )
    kind = "tokens" if _KINDS[first.suffix] == "tokens" else "files"
    return ChosenData(kind, named), (f"data: {first.name} is not looked into",)


def _name_on_hub(named: str, subset: str) -> Seen:
    if named.count("/") == 1 and not named.startswith((".", "/", "~")) and Path(named).suffix not in _KINDS:
        return ChosenData("hf-dataset", named, subset), (f"data: {named} on the hub; its records are not looked at",)
    raise _refuse(named, "there is no such file", "it is no name of the hub either", "correct the path")


def _judge_records(named: str, file: Path, records: list[Mapping[str, Any]], task: Task) -> Seen:
    if not records:
        raise _refuse(named, f"{file.name} is empty", "there is nothing to train on", "name another file")
    fields = [name for name in records[0] if all(name in record for record in records)]
    shown = ", ".join(fields) or "no field in common"
    line = f"data: the first {counted(len(records), 'record')} of {file.name} have {shown}"
    chat = next((name for name in (*_CHATS, *fields) if all(_is_chat(record.get(name)) for record in records)), None)
    is_pair = all(isinstance(record.get(name), str) for record in records for name in ("prompt", "completion"))
    if task == "sft" and (chat is not None or is_pair):
        field = "" if chat in (None, "messages") else str(chat)
        longest = _count_longest(records, (chat,) if chat else ("prompt", "completion"))
        what = "chats" if chat else "prompts and completions"
        return ChosenData("files", named, field=field), (f"{line}: {what}, the longest with {longest:,} characters",)
    texts = [name for name in fields if all(isinstance(record.get(name), str) for record in records)]
    # A column without a usual name is a text if it is the longest one: beside it are names and sources.
    longest_text = max(texts, key=lambda name: _count_longest(records, (name,)), default=None)
    text = next((name for name in _TEXTS if name in texts), longest_text)
    if task == "pretrain" and text is not None:
        longest = _count_longest(records, (text,))
        field = "" if text == "text" else text
        return ChosenData("files", named, field=field), (f"{line}: text in {text}, up to {longest:,} characters",)
    wanted = "a list of messages with role and content, or prompt and completion" if task == "sft" else "a text"
    other = "they are chats: --task sft" if chat and task == "pretrain" else "they are texts: --task pretrain"
    raise _refuse(
        named,
        f"the first records of {file.name} have {shown}",
        f"{task} reads {wanted}",
        other if (chat and task == "pretrain") or (text and task == "sft") else f"convert them to {wanted}",
    )


def _count_longest(records: list[Mapping[str, Any]], fields: tuple[str, ...]) -> int:
    """The characters of the longest record in these columns: of its texts, or of all turns of its chat."""
    return max(sum(_count_characters(record[field]) for field in fields) for record in records)


def _count_characters(value: Any) -> int:
    return len(value) if isinstance(value, str) else sum(len(str(turn["content"] or "")) for turn in value)


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, dict) and "role" in turn and "content" in turn for turn in value)
    )


def _read_lines(named: str, file: Path) -> list[Mapping[str, Any]]:
    """The first records of a file of JSON lines. Raises UserError for a line that is none."""
    try:
        with outside.open_regular(file) as lines:
            first = (lines.readline(LINE_BYTES + 1) for _ in range(_RECORDS))
            return [
                _read_record(named, file, number, line) for number, line in enumerate(first, start=1) if line.strip()
            ]
    except OSError as error:
        raise _refuse(
            named, f"{file.name} cannot be read: {error.strerror}", "it is looked at", "see `ls -l`"
        ) from None


def _read_table(named: str, file: Path) -> list[Mapping[str, Any]] | NotKnown:
    """The first records of a .parquet file. Raises UserError for a damaged one."""
    found = read_first_rows(file, _RECORDS, sys.executable)
    if isinstance(found, NotKnown):
        return found
    if found.fault:
        why = "its first records are looked at"
        raise _refuse(named, f"{file.name} cannot be read: {found.fault}", why, "write it again, or name another file")
    return [_read_record(named, file, number, row.encode()) for number, row in enumerate(found.rows, start=1)]


def _read_record(named: str, file: Path, number: int, line: bytes) -> Mapping[str, Any]:
    what = "has more than a megabyte"
    if len(line) <= LINE_BYTES:
        try:
            # A table may hold NaN and integers of any length in columns that are not trained on.
            is_table = file.suffix == ".parquet"
            record = outside.parse_json(line, not_finite=is_table, large=is_table)
        except ValueError:
            record = None
        if isinstance(record, dict):
            return record
        what = "is no JSON object"
    why, unit = "each record is an object with its columns", "line" if file.suffix == ".jsonl" else "record"
    raise _refuse(named, f"{unit} {number} of {file.name} {what}", why, f"correct {unit} {number}, or leave it out")


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
