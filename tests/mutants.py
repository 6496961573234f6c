"""Counts the mutants that the tests catch: `python tests/mutants.py [--list]`, after `mutmut run` (`make mutants`).

A mutant is a copy of a function with one small change. A mutant that changes only the text of a message counts apart,
because tests check behaviour and not wording. The exit code is 1 where the tests of a module catch less than
LEAST_SHARE of its other mutants. `--list` prints each of those that no test catches.
"""

from __future__ import annotations

import ast
import difflib
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "mutants"
LEAST_SHARE = 0.9
_ORIGINAL = "orig"
_NOT_CAUGHT = (0, 5, 33, 34)  # exit codes in mutmut's results: survived, two of no tests, skipped


class Mutant(NamedTuple):
    """One mutant and its result. `name` is that of the function in the mutated file, `change` the line that differs."""

    name: str
    change: str
    is_caught: bool
    is_text: bool


class _Blank(ast.NodeTransformer):
    """Empties the texts of messages: f-strings, and strings with a space outside a comparison."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        return node

    def visit_JoinedStr(self, _: ast.JoinedStr) -> ast.AST:
        return ast.Constant("")

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant("") if isinstance(node.value, str) and " " in node.value else node


def is_text_change(before: str, after: str) -> bool:
    """Whether two versions of a function differ in the texts of messages only."""
    return _without_texts(before) == _without_texts(after)


def _without_texts(source: str) -> str:
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    function.name = ""
    return ast.dump(_Blank().visit(function))


def read_mutants(file: str) -> Iterator[Mutant]:
    """The mutants of one source file, with the results of the last `mutmut run`."""
    mutated = MUTANTS / file
    sources = _read_functions(mutated.read_text(encoding="utf-8"))
    results = json.loads(mutated.with_name(f"{mutated.name}.meta").read_text(encoding="utf-8"))["exit_code_by_key"]
    for name, code in results.items():
        if code is None:
            sys.exit(f"error: mutmut run has not reached {name}")
        function = name.rpartition(".")[2]
        stem, _, _ = function.rpartition("_")
        before, after = sources[f"{stem}_{_ORIGINAL}"], sources[function]
        yield Mutant(function, _find_change(before, after), code not in _NOT_CAUGHT, is_text_change(before, after))


def _read_functions(source: str) -> dict[str, str]:
    """The source of each function and method by its name, without indentation."""
    lines = source.splitlines()
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            block = lines[node.lineno - 1 : node.end_lineno]
            found[node.name] = "\n".join(line[node.col_offset :] if line.strip() else "" for line in block)
    return found


def _find_change(before: str, after: str) -> str:
    """The lines of `after` that differ from `before`, joined; those of `before` where `after` only lacks some."""
    lines = list(difflib.ndiff(before.splitlines()[1:], after.splitlines()[1:]))
    changed = [line[2:].strip() for line in lines if line.startswith("+ ")]
    return " ".join(changed or [f"- {line[2:].strip()}" for line in lines if line.startswith("- ")])


def main(arguments: list[str]) -> int:
    files = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]["only_mutate"]
    failed = False
    for file in files:
        mutants = list(read_mutants(file))
        texts = [mutant for mutant in mutants if mutant.is_text]
        others = [mutant for mutant in mutants if not mutant.is_text]
        caught, caught_texts = (sum(mutant.is_caught for mutant in some) for some in (others, texts))
        share = caught / max(1, len(others))
        failed |= share < LEAST_SHARE
        print(f"{share:6.1%}  {caught:4} of {len(others):4}  texts {caught_texts:3} of {len(texts):3}  {file}")
        if "--list" in arguments:
            for mutant in others:
                if not mutant.is_caught:
                    print(f"    {mutant.name}: {mutant.change}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
