"""A class name belongs to one module of src, so that a name in a message or a search means one class."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping

from tests.house.source_modules import parse_modules

MOST_SHARED_NAMES = 103  # may only fall


def find_shared_names(modules: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Class name -> its modules, for names that several modules use. A protocol may share a name with its classes."""
    places: dict[str, list[str]] = defaultdict(list)
    for module, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not _is_protocol(node):
                places[node.name].append(module)
    return {name: found for name, found in places.items() if len(set(found)) > 1}


def _is_protocol(node: ast.ClassDef) -> bool:
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in bases)


def test_no_more_class_names_are_shared() -> None:
    shared = find_shared_names(parse_modules())
    lines = [f"{name}: {', '.join(modules)}" for name, modules in sorted(shared.items())]
    assert len(lines) <= MOST_SHARED_NAMES, "\n".join(lines)


def test_a_shared_name_is_found_and_a_protocol_is_not() -> None:
    modules = {
        "a": ast.parse("class Sample: ...\nclass Reader(Protocol[T]): ..."),
        "b": ast.parse("class Sample: ...\nclass Reader: ...\nclass Other: ..."),
    }
    assert find_shared_names(modules) == {"Sample": ["a", "b"]}
