"""A class name belongs to one module of src, so that a name in a message or a search means one class."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping

from tests.house.source_modules import parse_modules


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


def test_a_class_name_belongs_to_one_module() -> None:
    assert find_shared_names(parse_modules()) == {}


def test_a_shared_name_is_found_and_a_protocol_is_not() -> None:
    modules = {
        "a": ast.parse("class Sample: ...\nclass Reader(Protocol[T]): ..."),
        "b": ast.parse("class Sample: ...\nclass Reader: ...\nclass Other: ..."),
    }
    assert find_shared_names(modules) == {"Sample": ["a", "b"]}
