"""Python imports this at the start of each process whose PYTHONPATH has this folder.

It replaces the training loop of a trainer by arithmetic.py, and changes no other process.
"""

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from typing import Sequence  # noqa: UP035 - collections.abc is slower to import here

LOOP = "prime_train.trainer.loops.pretrain"


class _Finder:
    @staticmethod
    def find_spec(
        name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != LOOP:
            return None
        return spec_from_file_location(name, os.path.join(os.path.dirname(__file__), "arithmetic.py"))  # noqa: PTH118, PTH120


if os.environ.get("FUZZ_LOOP") == "arithmetic" and sys.orig_argv[1:3] == ["-m", "prime_train.trainer"]:
    sys.meta_path.insert(0, _Finder())
