"""Run as a program by the interpreter that a run will use: prints what is installed there as one JSON object.

Imports nothing that it looks for, unless it is told to. The standard library of Python 3.8 is enough for it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from pathlib import Path


def look(asked: dict[str, list[str]]) -> dict[str, object]:
    """`asked`: names of `distributions`, and of `modules` to find or to `imports`."""
    versions = {}
    requirements = []
    for name in asked["distributions"]:
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        versions[name] = found.version
        requirements += [[name, text] for text in found.requires or () if _names_a_version(text)]
    for _, text in requirements:
        required = re.match(r"[A-Za-z0-9._-]+", text)
        if required and required[0] not in versions:
            try:
                versions[required[0]] = importlib.metadata.version(required[0])
            except importlib.metadata.PackageNotFoundError:
                continue
    faults = {name: fault for name in asked["modules"] if (fault := _not_found(name))}
    faults.update({name: fault for name in asked["imports"] if name not in faults and (fault := _not_imported(name))})
    return {
        "version": platform.python_version(),
        "versions": versions,
        "requirements": requirements,
        "torch_cuda": _torch_cuda(),
        "faults": faults,
    }


def _names_a_version(requirement: str) -> bool:
    """Whether it can be unmet by what is installed; one of an extra counts only for who asked for the extra."""
    before, _, marker = requirement.partition(";")
    return "extra" not in marker and any(sign in before for sign in "<>=!~")


def _not_found(module: str) -> str:
    try:
        return "" if _is_there(module) or _in_verifiers(module) else "it is not installed"
    except (ImportError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def _is_there(module: str) -> bool:
    """Whether a module can be found. Looking one up below a package would import the package: its folders are read."""
    first, *below = module.split(".")
    spec = importlib.util.find_spec(first)
    if spec is None or not below:
        return spec is not None
    paths = [Path(folder, *below) for folder in spec.submodule_search_locations or ()]
    return any(path.is_dir() or path.with_name(f"{path.name}.py").is_file() for path in paths)


def _in_verifiers(module: str) -> bool:
    """Whether verifiers brings it: its own environments are found by the same names as packages."""
    spec = importlib.util.find_spec("verifiers")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for _, folders, files in os.walk(folder):
            if module in folders or f"{module}.py" in files:
                return True
    return False


def _not_imported(module: str) -> str:
    if importlib.util.find_spec(module) is None:
        return ""  # it is inside verifiers, which imports it by a longer name
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever a foreign module raises is the answer to the question
        return f"{type(error).__name__}: {error}"
    return ""


def _torch_cuda() -> str:
    """The CUDA that torch was built for, "none" for a CPU build, as version.py says: importing torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return ""
    try:
        with open(f"{spec.submodule_search_locations[0]}/version.py", encoding="utf-8") as file:
            found = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", file.read(), re.MULTILINE)
    except OSError:
        return ""
    return found[1] if found else "none"


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: a module in it must not stand in for a package
    print(json.dumps(look(json.load(sys.stdin))))  # noqa: T201 - the answer
