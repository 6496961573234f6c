"""Python imports this at its start, because a supervised command has this folder first on PYTHONPATH.

It runs the sitecustomize that the command would have had, makes `prime_train` importable where it is not installed,
and adds the callbacks when the training imports a trainer. A fault in here is a line for the supervisor and never ends
the training. Standard library only, Python 3.9 or later.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent
FOLDER_ENV = "PRIME_TRAIN_LIVE"


def run_other_sitecustomize() -> None:
    """Run the next module of this name on the path. What it raises is its own, as without this one."""
    rest = [entry for entry in sys.path if not entry or Path(entry).resolve() != HERE]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def add_to_transformers(module: ModuleType) -> None:
    from prime_train.callbacks import huggingface

    huggingface.add_to(module.Trainer)


def add_to_lightning(module: ModuleType) -> None:
    from prime_train.callbacks import lightning

    package = module.__name__.removesuffix(".trainer.trainer")
    lightning.add_to(module.Trainer, importlib.import_module(f"{package}.callbacks").Callback)


TRAINERS: dict[str, Callable[[ModuleType], None]] = {
    "transformers.trainer": add_to_transformers,
    "lightning.pytorch.trainer.trainer": add_to_lightning,
    "pytorch_lightning.trainer.trainer": add_to_lightning,
}


class LiveFinder:
    """Finds `prime_train` beside this folder, and calls a function after the import of a trainer's module."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "prime_train":  # the version of the supervisor, because the two read and write the same lines
            initial = PACKAGE / "__init__.py"
            return importlib.util.spec_from_file_location(name, initial, submodule_search_locations=[str(PACKAGE)])
        if name not in TRAINERS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            call_after(spec, TRAINERS[name])
        return spec


def call_after(spec: ModuleSpec, then: Callable[[ModuleType], None]) -> None:
    loader = spec.loader
    assert loader is not None
    execute = loader.exec_module

    def execute_and_call(module: ModuleType) -> None:
        execute(module)
        try:
            then(module)
        except Exception as error:  # of any kind: another version of the trainer may lack anything
            write_note(f"{module.__name__} got no callback: {type(error).__name__}: {error}")

    loader.exec_module = execute_and_call  # type: ignore[method-assign]


def write_note(text: str) -> None:
    try:
        from prime_train import live

        live.note(text)
    except Exception:  # noqa: S110 - there is no place left to report it, and the training goes on
        pass


if os.environ.get(FOLDER_ENV):
    sys.meta_path.insert(0, LiveFinder())
run_other_sitecustomize()
