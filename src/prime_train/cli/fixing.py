"""Writes what `lint --fix` changed, and shows what `--diff` would change. Judges nothing.

A file is replaced whole or not at all, keeps its mode and its byte order mark, and is left alone where it
changed since it was read.
"""

from __future__ import annotations

import codecs
import difflib
import os
import stat
import tempfile
from pathlib import Path

from prime_train.errors import UserError


def diff(path: str, before: str, after: str) -> str:
    """The change as a unified diff that `patch -p1` takes; "" where there is none."""
    name = path.lstrip("/")
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    ended = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return "".join(ended).removesuffix("\n")


def rewrite(path: str, before: str, after: str) -> None:
    """Put `after` in the place of a file that still says `before`. Raises UserError where that cannot be."""
    if before == after:
        return
    try:
        target = Path(path).resolve(strict=True)
        content = target.read_bytes()
        mark = codecs.BOM_UTF8 if content.startswith(codecs.BOM_UTF8) else b""
        if content != mark + before.encode():
            raise UserError(
                what="the file changed while it was checked",
                where=path,
                why="writing the fixed text would undo that change",
                fix="run prime-train lint --fix again",
            )
        _replace(target, mark + after.encode())
    except OSError as error:
        raise UserError(
            what="the fixed text cannot be written",
            where=path,
            why=error.strerror or str(error),
            fix="make the file and its folder writable, or take the change from prime-train lint --diff",
        ) from None


def _replace(target: Path, content: bytes) -> None:
    mode = stat.S_IMODE(target.stat().st_mode)
    if not os.access(target, os.W_OK):  # a read-only file in a writable folder could be replaced: it is not asked for
        raise PermissionError(13, "the file is read-only")
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.chmod(mode)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
