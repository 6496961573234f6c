"""Reads back what W&B wrote offline: LevelDB's log format around protobuf records. For tests only."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HEADER_BYTES, _BLOCK_BYTES, _RECORD_HEADER_BYTES = 7, 32 * 1024, 7
_FULL, _FIRST, _LAST = 1, 2, 4


def _payloads(data: bytes) -> Iterator[bytes]:
    """Records, joined from their parts; a part never crosses a block."""
    at, parts = _HEADER_BYTES, b""
    while at + _RECORD_HEADER_BYTES <= len(data):
        left = _BLOCK_BYTES - at % _BLOCK_BYTES
        if left < _RECORD_HEADER_BYTES:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        part = data[at + _RECORD_HEADER_BYTES : at + _RECORD_HEADER_BYTES + length]
        at += _RECORD_HEADER_BYTES + length
        parts = part if kind in (_FULL, _FIRST) else parts + part
        if kind in (_FULL, _LAST):
            yield parts


def records(folder: Path) -> Iterator[Any]:
    """All records of all offline runs below `folder`, in the order of their start."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    for path in sorted(folder.rglob("*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        for payload in _payloads(path.read_bytes()):
            record = messages.Record()
            record.ParseFromString(payload)
            yield record


def history(folder: Path) -> list[dict[str, Any]]:
    """The logged rows, each with its `_step`."""
    rows = []
    for record in records(folder):
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            rows.append(items | {"_step": record.history.step.num})
    return rows
