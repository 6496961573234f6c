"""Reads what a file of tokens is by its header: a .bin of llm.c, or a .npy. Loads no pickle, and no token.

Source of the .bin: llm.c, dev/data/data_common.py: 256 int32 (magic, version, number of tokens), then the tokens.
Source of the separator of Llama 3: dev/data/fineweb.py, which writes 128000 before each document.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from tokenize import TokenError
from typing import Any, NamedTuple

import numpy as np
from numpy.lib import format as npy

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.trainer.data.sources import reading
from prime_train.trainer.data.token_parts import Tokens
from prime_train.trainer.failure import first_line

_HEADER_BYTES = 1024


class Format(NamedTuple):
    """A .bin of llm.c."""

    tokenizer: str
    version: int
    kind: str  # of a token, as numpy names it
    separator: int  # before each document
    eos_ids: tuple[int, ...]  # the end-of-text token of a tokenizer with these tokens


FORMATS = {
    20240520: Format("GPT-2", 1, "<u2", 50256, (50256,)),
    20240801: Format("Llama 3", 7, "<u4", 128000, (128001, 128008, 128009)),
}


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file whose size is as its header has it."""

    path: Path
    kind: np.dtype[np.unsignedinteger[Any]]
    begin_bytes: int  # of the first token
    count: int
    format: Format | None = None  # None for a .npy, which does not name its tokenizer

    def read(self, descriptor: int, start: int, count: int) -> Tokens:
        """Tokens [start, start + count). Raises UserError where the file was cut since its header was read."""
        size = self.kind.itemsize
        with reading(self.path):
            content = os.pread(descriptor, count * size, self.begin_bytes + start * size)
        if len(content) < count * size:
            what = f"it ends before token {start + count:,} of {self.count:,}"
            why = "another program has changed it since the run began"
            raise UserError(what, str(self.path), why, "write the file again, then resume the run")
        return np.frombuffer(content, dtype=self.kind)


def read_header(path: Path) -> TokenFile:
    """What a file is. Raises UserError where it is not of a known format, or has another size than its header has."""
    with reading(path), outside.open_regular(path) as file:
        found = _read_npy(path, file) if path.suffix == ".npy" else _read_bin(path, file)
        size_bytes = os.fstat(file.fileno()).st_size
    expected_bytes = found.begin_bytes + found.count * found.kind.itemsize
    if size_bytes != expected_bytes:
        what = f"it has {size_bytes:,} bytes, but {expected_bytes:,} by its header of {found.count:,} tokens"
        why = "it was cut, or another program still writes it" if size_bytes < expected_bytes else "it is damaged"
        raise UserError(what, str(path), why, "copy or write it again")
    return found


def _read_bin(path: Path, file: BufferedReader) -> TokenFile:
    content = file.read(_HEADER_BYTES)
    if len(content) < _HEADER_BYTES:
        raise _refused(path, f"it has {len(content)} bytes, and the header of a .bin has {_HEADER_BYTES}")
    magic, version, count = np.frombuffer(content, dtype="<i4")[:3].tolist()
    if magic not in FORMATS:
        raise _refused(path, f"its first number is {magic}, not {' or '.join(map(str, FORMATS))}")
    known = FORMATS[magic]
    if version != known.version or count < 0:
        what = f"version {version}" if version != known.version else f"{count} tokens"
        raise _refused(path, f"its header has {what}; version {known.version} is known for {known.tokenizer}")
    return TokenFile(path, np.dtype(known.kind), _HEADER_BYTES, count, known)


def _refused(path: Path, what: str) -> UserError:
    why = "a .bin is read as llm.c writes it, with a header; files of other programs, such as nanoGPT's, have none"
    fix = f'write it as .npy: numpy.save("{path.stem}.npy", numpy.fromfile("{path.name}", numpy.uint16))'
    return UserError(what, str(path), why, fix)


def _read_npy(path: Path, file: BufferedReader) -> TokenFile:
    try:
        version = npy.read_magic(file)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, kind = read(file)
    except (ValueError, SyntaxError, TypeError, RecursionError, TokenError) as error:  # what damaged headers give
        raise UserError(
            what=f"it is no .npy file: {first_line(error)}",
            where=str(path),
            why="a file of tokens is one array of numpy, and nothing else is loaded, a pickle least of all",
            fix=f'write it with numpy.save("{path.name}", tokens), tokens of type numpy.uint16 or numpy.uint32',
        ) from error
    fault = ""
    if kind.hasobject:
        fault, fix = "its elements are Python objects", "numpy.asarray(tokens.tolist(), numpy.uint32)"
    elif kind.kind != "u":
        fault, fix = f"its elements are {kind.name}", "tokens.astype(numpy.uint32)"
    elif len(shape) != 1:
        fault, fix = f"it has the shape {shape}", "tokens.reshape(-1)"
    if fault:
        raise UserError(
            what=f"{fault}; tokens are one row of unsigned integers",
            where=str(path),
            why="objects are stored as a pickle, which runs code when it is loaded"
            if kind.hasobject
            else "other values could be read as other tokens",
            fix=f'numpy.save("{path.name}", {fix})',
        )
    return TokenFile(path, kind, file.tell(), shape[0])
