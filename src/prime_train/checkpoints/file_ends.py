"""Finds out by its own content whether a file was written to its end: safetensors, torch's zip, JSON. Runs nothing.

A size that stays the same proves nothing: a temporary file of safetensors has its full size while it is written. What
is read is bounded, and each file is read once for each version of it.

Source: huggingface/safetensors README (format); APPNOTE.TXT 6.3 sections 4.3.14 to 4.3.16 (zip).
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from prime_train.core import outside
from prime_train.core.outside import RECORD_BYTES, OutsideError

Ending = Literal["safetensors", "zip", "json"]

_PICKLE = b"\x80"
_MOST_DIRECTORY_BYTES = 64 * 2**20  # 500,000 tensors have this
_EOCD = struct.Struct("<4s4HIIH")  # end of central directory: signature, disks and counts, size, offset, comment
_EOCD64 = struct.Struct("<4sQ2H2I4Q")  # the same with 64 bits: ..., size, offset
_LOCATOR_BYTES = 20  # between the two
_COMMENT_BYTES = 2**16 - 1
_UNKNOWN32 = 2**32 - 1  # the 64-bit record has the value


class FileVersion(NamedTuple):
    """A file as it was when it was looked at. A file that is written again has another one."""

    inode: int
    changed_ns: int
    size_bytes: int


def version_of(status: os.stat_result) -> FileVersion:
    return FileVersion(status.st_ino, status.st_ctime_ns, status.st_size)


@lru_cache(maxsize=2**14)  # a run is looked at every few seconds, and a tokenizer.json takes long to parse
def find_fault(path: Path, ending: Ending, version: FileVersion) -> str:
    """What shows that a file was not written to its end; "" where nothing does. Raises OSError as `open_regular`."""
    del version  # a key of the cache
    match ending:
        case "json":
            return _find_json_fault(path)
        case "safetensors":
            return _find_safetensors_fault(path)
        case "zip":
            return _find_zip_fault(path)


def read_json(path: Path) -> Any:
    """The value of a JSON file, with every number that Python writes. Raises OSError and ValueError."""
    return outside.parse_json(outside.read_bytes(path, RECORD_BYTES, path.parent), not_finite=True, large=True)


def _find_json_fault(path: Path) -> str:
    try:
        read_json(path)
    except ValueError:
        return "it is no whole JSON"
    return ""


def _find_safetensors_fault(path: Path) -> str:
    with outside.open_regular(path, path.parent) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        if len(prefix) < 8:
            return f"it has {size_bytes:,} bytes, fewer than the length of its header"
        header_bytes = int.from_bytes(prefix, "little")
        if header_bytes > min(RECORD_BYTES, size_bytes - 8):
            return f"its header should have {header_bytes:,} bytes, and the file has {size_bytes:,}"
        header = file.read(header_bytes)
    try:
        data_bytes = _measure_tensors(outside.parse_json(header))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return "its header is not that of safetensors"
    whole_bytes = 8 + header_bytes + data_bytes
    return "" if size_bytes == whole_bytes else f"it has {size_bytes:,} of {whole_bytes:,} bytes"


def _measure_tensors(header: Mapping[str, Any]) -> int:
    """The end of the last tensor, in bytes from the end of the header."""
    ends = (outside.to_count(value["data_offsets"][1]) for name, value in header.items() if name != "__metadata__")
    known = [end for end in ends if end is not None]
    if len(known) != len(header) - ("__metadata__" in header):
        raise ValueError("an offset is no count")
    return max(known, default=0)


def _find_zip_fault(path: Path) -> str:
    """The directory is the last that is written, so a file that was cut has none at its end."""
    with outside.open_regular(path, path.parent) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if (first := file.read(4)) not in (b"PK\x03\x04", b"PK\x05\x06"):
            if first[:1] == _PICKLE:
                what = "it is a pickle, which torch wrote before 1.6: its end proves nothing"
                raise OutsideError(errno.ENOTSUP, what, path, "only the zip that torch.save writes has an end")
            return "it does not begin as a file of torch.save" if size_bytes else "it is empty"
        file.seek(max(0, size_bytes - _EOCD.size - _COMMENT_BYTES))
        tail = file.read(_EOCD.size + _COMMENT_BYTES)
        at = tail.rfind(b"PK\x05\x06")
        if at < 0 or len(tail) - at < _EOCD.size:
            return f"its {size_bytes:,} bytes do not have the end that torch.save writes last"
        *_, directory_bytes, offset, comment_bytes = _EOCD.unpack_from(tail, at)
        end = size_bytes - len(tail) + at
        if end + _EOCD.size + comment_bytes != size_bytes:
            return "bytes follow the end that torch.save writes last"
        wide = at - _LOCATOR_BYTES - _EOCD64.size
        if (
            wide >= 0
            and tail[at - _LOCATOR_BYTES :].startswith(b"PK\x06\x07")
            and tail[wide:].startswith(b"PK\x06\x06")
        ):
            *_, directory_bytes, offset = _EOCD64.unpack_from(tail, wide)
            end -= _LOCATOR_BYTES + _EOCD64.size
        elif _UNKNOWN32 in (directory_bytes, offset):
            return "the record with the place of its directory is missing"
    if directory_bytes > _MOST_DIRECTORY_BYTES:
        return "its directory is larger than that of any checkpoint"
    # The directory lies directly before its record, so bytes that were lost in the middle show here.
    return "" if offset + directory_bytes == end else "its directory does not end where it should"
