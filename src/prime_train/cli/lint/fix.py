"""Writes the changes of `lint --fix`, and computes the diff of `lint --diff`.

A file is replaced atomically and keeps its mode and its byte order mark. A file that changed since it was read is
not written.
"""

from __future__ import annotations

import codecs
import difflib
import os
import stat
import tempfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from prime_train.cli.lint.search import is_run_directory
from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.outside import CONFIG_BYTES
from prime_train.rules.fix import fix_text
from prime_train.rules.judge import Verdict


class Repair(NamedTuple):
    """The options of `lint --fix` and `--diff`: `unsafe` adds the fixes that change the run."""

    write: bool
    unsafe: bool = False

    @property
    def option(self) -> str:
        return "--fix" if self.write else "--diff"


class Repaired(NamedTuple):
    """The verdicts to show, the number of fixed findings, and the changes as a unified diff.

    `unsafe_left` is the number of findings that only --unsafe-fixes would fix.
    """

    verdicts: tuple[Verdict, ...]
    fixed: int
    diff: str
    unsafe_left: int
    texts: dict[str, str]  # path -> the text that `verdicts` judge


def fix_files(
    sources: Sequence[tuple[str, str]],
    judge: Callable[..., Verdict],  # of a text and its path
    select: Callable[[Verdict], Verdict],
    *,
    repair: Repair,
) -> Repaired:
    """Fix the selected findings in each (text, path).

    With `repair.write` the files are written and the verdicts are of the fixed texts; else they are of the texts as
    they are.
    """

    def to_fix(verdict: Verdict) -> Verdict:
        selected = select(verdict)
        if repair.unsafe:
            return selected
        return selected._replace(findings=tuple(finding for finding in selected.findings if finding.safe))

    verdicts: list[Verdict] = []
    diffs: list[str] = []
    fixed_count = unsafe_left = 0
    texts: dict[str, str] = {}
    for text, path in sources:
        if repair.write and path == "<stdin>":
            raise UserError(
                what="standard input cannot be fixed in place",
                where="lint --fix -",
                why="there is no file to write to",
                fix="name the file, or use --diff",
            )
        if repair.write:
            _refuse_record(path)
        judge_text = cache(partial(judge, path=path))  # `fix_text` judges the unchanged text again
        before = select(judge_text(text))
        result = fix_text(text, judge_text, to_fix)
        after = select(result.verdict)
        fixed_count += len(result.applied)
        unsafe_left += sum(bool(finding.patch) and not (finding.safe or repair.unsafe) for finding in after.findings)
        diffs.append(diff(path, text, result.text))
        if repair.write:
            rewrite(path, text, result.text)
        verdicts.append(after if repair.write else before)
        texts[path] = result.text if repair.write else text
    changes = "\n".join(change for change in diffs if change)
    return Repaired(tuple(verdicts), fixed_count, changes, unsafe_left, texts)


def _refuse_record(path: str) -> None:
    """Raises UserError for a file in a run's directory."""
    for folder in Path(path).resolve().parents:
        try:
            inside = list(folder.iterdir())
        except OSError:  # a folder that may be passed and not listed
            continue
        names = [entry.name for entry in inside]
        if is_run_directory(names, names):
            raise UserError(
                what="it is a record of a run, and is not changed",
                where=path,
                why=f"{folder} is the directory of a run: its configs show what was started",
                fix="fix the config that the run was started with; --diff shows the changes",
            )


def diff(path: str, before: str, after: str) -> str:
    """The change as a unified diff for `patch -p1`; "" if there is no change."""
    name = path.lstrip("/")
    old, new = (StringIO(text, newline="\n").readlines() for text in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    ended = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return "".join(ended).removesuffix("\n")


def rewrite(path: str, before: str, after: str) -> None:
    """Replace the text `before` of a file by `after`. Raises UserError if the file changed or cannot be written."""
    if before == after:
        return
    try:
        target = Path(path).resolve(strict=True)
        content = outside.read_bytes(target, CONFIG_BYTES)
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
    if not os.access(target, os.W_OK):  # `replace` would succeed in a writable folder
        raise PermissionError(13, "the file is read-only")
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
