"""No modules of src import each other in a circle, imports for types and imports in functions included.

The modules of a circle can only be read, tested and moved together.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter

from tests.house.source_modules import list_imports, parse_modules


def find_circle(modules: Mapping[str, ast.Module]) -> list[str]:
    """The modules of one circle, each imported by the next; empty if there is none."""
    known = frozenset(modules)
    graph = {name: set(list_imports(name, tree, known)) - {name} for name, tree in modules.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def test_no_modules_import_each_other_in_a_circle() -> None:
    modules = parse_modules()
    assert len(modules) > 100
    assert find_circle(modules) == []


def test_a_circle_is_found_through_types_and_functions() -> None:
    modules = {
        "a": ast.parse("import b"),
        "b": ast.parse("if TYPE_CHECKING:\n    from p import c"),
        "p": ast.parse(""),
        "p.c": ast.parse("def f():\n    from .d import x"),
        "p.d": ast.parse("from a import x"),
        "e": ast.parse("from a import y"),
    }
    assert set(find_circle(modules)) == {"a", "b", "p.c", "p.d"}
