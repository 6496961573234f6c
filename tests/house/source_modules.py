"""The modules of src and their syntax trees, which the tests of this folder read. Imports none of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"


@cache
def parse_modules() -> Mapping[str, ast.Module]:
    """Dotted name -> syntax tree, for every module and package of src."""
    return {name_module(path): ast.parse(path.read_bytes()) for path in sorted(SRC.rglob("*.py"))}


def name_module(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def list_imports(name: str, tree: ast.Module, known: frozenset[str]) -> Iterator[str]:
    """The modules of `known` that the module `name` imports anywhere: in a function and for its types too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: -node.level] if node.level else []  # of a relative import
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                submodule = f"{source}.{alias.name}"
                if submodule in known:
                    yield submodule
                elif source in known:
                    yield source
