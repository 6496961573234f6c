"""The packages that a machine with a GPU may lack, and how they get there without a network. Standard library only."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import record

COMMIT = "commit.txt"  # beside the wheels: a copied tree has no history to read it from
PLATFORMS = ("2_28", "2_27", "2_24", "2_17", "2_12", "2_5")  # versions of glibc, each accepted by its exact number


class Wheel(NamedTuple):
    """`group` is what needs it: every step that imports prime_train, a run of the trainer, or fp8."""

    name: str
    version: str
    module: str
    group: str
    why: str


# What a Python 3.12 lacks that has torch 2.11.0, transformers 5.17, huggingface-hub 1.33, accelerate, pyarrow, numpy,
# tokenizers, safetensors, matplotlib, typer, rich, psutil, jinja2, pyyaml and nvidia-ml-py. lm-eval (9 MB, and more
# needs) and vLLM (336 MB, for another torch) are left out: no step uses them.
WHEELS = (
    Wheel("pydantic", "2.14.4", "pydantic", "base", "checks configs and registry"),
    Wheel("pydantic-core", "2.50.5", "pydantic_core", "base", "of pydantic"),
    Wheel("annotated-types", "0.8.0", "annotated_types", "base", "of pydantic"),
    Wheel("typing-inspection", "0.4.5", "typing_inspection", "base", "of pydantic"),
    Wheel("tomli", "2.5.0", "tomli", "base", "reads TOML"),
    Wheel("tree-sitter", "0.26.1", "tree_sitter", "base", "finds the lines of a config"),
    Wheel("tree-sitter-toml", "0.7.0", "tree_sitter_toml", "base", "of tree-sitter"),
    Wheel("datasets", "5.2.0", "datasets", "train", "a run asks for it before it starts"),
    Wheel("dill", "0.4.1", "dill", "train", "of datasets"),
    Wheel("multiprocess", "0.70.19", "multiprocess", "train", "of datasets"),
    Wheel("py-spy", "0.4.3", "", "train", "the hang watch shows stacks with it"),
    Wheel("backports.zstd", "1.8.0", "backports.zstd", "train", "packs checkpoints before Python 3.14"),
    Wheel("torchao", "0.18.0", "torchao", "fp8", "computes in fp8"),
)


def list_modules(groups: Iterable[str]) -> list[str]:
    """The modules that a step with these groups imports."""
    wanted = frozenset(groups)
    return [wheel.module for wheel in WHEELS if wheel.group in wanted and wheel.module]


def list_wheels() -> str:
    """One requirement of pip for each wheel, with the reason as its comment."""
    return "".join(f"{wheel.name}=={wheel.version}  # {wheel.group}: {wheel.why}\n" for wheel in WHEELS)


def download(folder: Path, python: str) -> None:
    """Fetch every wheel for x86-64 Linux and build this project's own. Raises CalledProcessError, or SystemExit.

    `python` is the version of the machine's interpreter, such as "3.12".
    """
    if any(folder.glob("*.whl")):
        sys.exit(f"{folder} already has wheels, and two versions of one package stop the installation: remove it first")
    folder.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    platforms = [part for version in PLATFORMS for part in ("--platform", f"manylinux_{version}_x86_64")]
    chosen = ["--python-version", python, "--implementation", "cp", *platforms, "--platform", "manylinux2014_x86_64"]
    names = [f"{wheel.name}=={wheel.version}" for wheel in WHEELS]
    only = ["--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "download", *only, *chosen, "-d", str(folder), *names], check=True)
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(folder), str(record.HERE.parent)], check=True)
    (folder / COMMIT).write_text(record.commit() + "\n", encoding="utf-8")


def install(folder: Path, site: Path) -> str:
    """Install the wheels of a folder into another one. Returns why that failed, or ""."""
    wheels = sorted(map(str, folder.glob("*.whl")))
    if not wheels:
        return ""
    options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), *wheels]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)[-500:]
    return "" if done.returncode == 0 else done.stderr[-500:]


def read_commit(folder: Path) -> str:
    """The commit of this checkout; outside of one, or without git, that of the wheels; "" where neither is known."""
    with contextlib.suppress(FileNotFoundError):
        if found := record.commit():
            return found
    with contextlib.suppress(FileNotFoundError):
        return (folder / COMMIT).read_text(encoding="utf-8").strip()[:80]
    return ""
