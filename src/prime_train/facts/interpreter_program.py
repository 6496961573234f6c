"""Program for the run's interpreter: prints its packages as one JSON object.

Imports only the modules in `imports`. Needs only the standard library of Python 3.8.
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


def read_packages(request: dict[str, list[str]]) -> dict[str, object]:
    """`request`: names of `distributions`, of `modules` to find, and of modules to import (`imports`)."""
    versions = {}
    requirements = []
    for name in request["distributions"]:
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        versions[name] = found.version
        requirements += [[name, text] for text in found.requires or () if _has_version(text)]
    for _, text in requirements:
        required = re.match(r"[A-Za-z0-9._-]+", text)
        if required and required[0] not in versions:
            try:
                versions[required[0]] = importlib.metadata.version(required[0])
            except importlib.metadata.PackageNotFoundError:
                continue
    faults = {name: fault for name in request["modules"] if (fault := _find_fault(name))}
    faults.update({name: fault for name in request["imports"] if name not in faults and (fault := _import_fault(name))})
    return {
        "version": platform.python_version(),
        "versions": versions,
        "requirements": requirements,
        "torch_cuda": _torch_cuda(),
        "faults": faults,
    }


def _has_version(requirement: str) -> bool:
    """Whether the requirement limits the version. Requirements of extras are ignored."""
    before, _, marker = requirement.partition(";")
    return "extra" not in marker and any(sign in before for sign in "<>=!~")


def _find_fault(module: str) -> str:
    try:
        return "" if _is_installed(module) or _in_verifiers(module) else "it is not installed"
    except (ImportError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def _is_installed(module: str) -> bool:
    """Whether a module exists. Reads the folders of a package, because find_spec of a submodule imports the package."""
    first, *below = module.split(".")
    spec = importlib.util.find_spec(first)
    if spec is None or not below:
        return spec is not None
    paths = [Path(folder, *below) for folder in spec.submodule_search_locations or ()]
    return any(path.is_dir() or path.with_name(f"{path.name}.py").is_file() for path in paths)


def _in_verifiers(module: str) -> bool:
    """Whether verifiers contains the module: its environments have names like packages."""
    spec = importlib.util.find_spec("verifiers")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for _, folders, files in os.walk(folder):
            if module in folders or f"{module}.py" in files:
                return True
    return False


def _import_fault(module: str) -> str:
    if importlib.util.find_spec(module) is None:
        return ""  # a module inside verifiers, which imports it by a longer name
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a module may raise any exception: its text is the result
        return f"{type(error).__name__}: {error}"
    return ""


def _torch_cuda() -> str:
    """The CUDA of the torch build, "none" for a CPU build. Reads version.py, because importing takes seconds."""
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
    print(json.dumps(read_packages(json.load(sys.stdin))))  # noqa: T201 - the answer
