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
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from prime_train.cli.linting import Repair
from prime_train.errors import UserError
from prime_train.rules.fix import fix_text
from prime_train.rules.judge import Verdict


class Repaired(NamedTuple):
    """The verdicts to tell, how many findings were cured, and the change as a unified diff.

    `unsafe_left` is how many findings have a patch that was not asked for.
    """

    verdicts: tuple[Verdict, ...]
    fixed: int
    diff: str
    unsafe_left: int


def repaired(
    sources: Sequence[tuple[str, str]],
    judge: Callable[[str, str], Verdict],
    selected: Callable[[Verdict], Verdict],
    *,
    repair: Repair,
) -> Repaired:
    """Fix the (text, path) of each file, as far as its findings are selected.

    Where it is to write, the files are written and the verdicts are those on the fixed texts; else nothing is written
    and they are those on the texts as they are.
    """

    def to_fix(verdict: Verdict) -> Verdict:
        wanted = selected(verdict)
        if repair.unsafe:
            return wanted
        return wanted._replace(findings=tuple(finding for finding in wanted.findings if finding.safe))

    verdicts: list[Verdict] = []
    diffs: list[str] = []
    cured = left = 0
    for text, path in sources:
        if repair.write and path == "<stdin>":
            raise UserError(
                what="standard input cannot be fixed in place",
                where="lint --fix -",
                why="there is no file to write to",
                fix="name the file, or use --diff",
            )
        before = selected(judge(text, path))
        result = fix_text(text, partial(_judged, judge, path), to_fix)
        after = selected(result.verdict)
        cured += len(result.applied)
        left += sum(bool(finding.patch) and not (finding.safe or repair.unsafe) for finding in after.findings)
        diffs.append(diff(path, text, result.text))
        if repair.write:
            rewrite(path, text, result.text)
        verdicts.append(after if repair.write else before)
    return Repaired(tuple(verdicts), cured, "\n".join(change for change in diffs if change), left)


def _judged(judge: Callable[[str, str], Verdict], path: str, text: str) -> Verdict:
    return judge(text, path)


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
