"""The modules of bench/, which import each other by their own names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[3] / "bench"


@contextmanager
def imported(*names: str) -> Iterator[list[ModuleType]]:
    """Import modules of bench/, and forget them at the end."""
    known = {*sys.modules}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        try:
            yield [import_module(name) for name in names]
        finally:
            for name in {*sys.modules} - known:
                if (getattr(sys.modules[name], "__file__", None) or "").startswith(f"{BENCH}/"):
                    del sys.modules[name]
