"""Counts words that make the project's text hard to read: `python tests/prose.py [PATH...]` lists each place."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

# Code does not speak, and a cause or an actor has a name. "Of" at the start of a sentence opens an inversion.
_HIDING = (
    r"\b(?:tells?|told|telling|says?|said|saying|whoever|whatever|whomever|whichever|somebody|someone|nobody|anew)\b"
)
BANNED = re.compile(
    _HIDING + r"|\bof which\b"
    r"|(?:^|[.:;!?]\s+)Of\b",
    re.IGNORECASE,
)
_OF = re.compile(r"(?:^|[.:;!?]\s+)of\b")
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


class Text(NamedTuple):
    """One comment, docstring, message or paragraph."""

    path: Path
    line: int
    words: str


def texts(path: Path) -> Iterator[Text]:
    """Every comment, docstring and message of a Python file, every paragraph of a Markdown file."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from _paragraphs(path, source)
        return
    yield from _comments(path, source)
    tree = ast.parse(source)
    literals = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            words = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in literals:
            words = node.value
        else:
            continue
        if len(_WORD.findall(words)) > 2:  # a key, a name or a pattern is no message
            yield Text(path, node.lineno, words)


def _comments(path: Path, source: str) -> Iterator[Text]:
    """Comments; those on lines that follow each other are one text."""
    block: list[str] = []
    start = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if block and line != last + 1:
            yield Text(path, start, " ".join(block))
            block = []
        start = start if block else line
        block.append(token.string.lstrip("#: "))
        last = line
    if block:
        yield Text(path, start, " ".join(block))


def _paragraphs(path: Path, source: str) -> Iterator[Text]:
    line = 1
    for block in re.split(r"(\n\s*\n)", source):
        if block.strip():
            yield Text(path, line, block)
        line += block.count("\n")


def found(text: Text) -> list[str]:
    """The banned words of a text; code in backquotes does not count."""
    words = _CODE.sub("X", text.words)
    return [match.group().strip() for match in BANNED.finditer(words) if not _OF.fullmatch(match.group())]


def names(path: Path) -> Iterator[Text]:
    """The words of each function and class that a Python file defines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield Text(path, node.lineno, " ".join(node.name.strip("_").split("_")))


def found_in_name(name: Text) -> list[str]:
    """The banned words of a name. It may begin with "of"."""
    return re.findall(_HIDING, name.words, re.IGNORECASE)


def count_of(text: Text, word: str) -> int:
    return [part.lower() for part in _WORD.findall(_CODE.sub("X", text.words))].count(word)


def count_words(text: Text) -> int:
    return len(_WORD.findall(_CODE.sub("X", text.words)))


def files(*paths: Path) -> list[Path]:
    """The Python and Markdown files at some paths; of folders all below them."""
    return sorted(
        file
        for path in paths
        for file in (path.rglob("*") if path.is_dir() else [path])
        if file.suffix in (".py", ".md") and "golden" not in file.parts
    )


def main(arguments: list[str]) -> None:
    words = hits = 0
    for path in files(
        *(Path(argument) for argument in arguments or [str(ROOT / "src"), str(ROOT / "docs"), str(ROOT / "README.md")])
    ):
        for text in texts(path):
            words += count_words(text)
            for banned in found(text):
                hits += 1
                shown = " ".join(text.words.split())
                print(f"{text.path}:{text.line}: {banned}: {shown[:160]}")
    print(f"{hits} in {words} words: {1000 * hits / max(words, 1):.2f} per 1,000")


if __name__ == "__main__":
    main(sys.argv[1:])
