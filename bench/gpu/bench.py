"""What a step measures with: where, how much, and where its rows go. Imports torch only in its functions."""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bench:
    """One step. `failed` has the cases that raised."""

    step: str
    device: str  # "cuda" or "cpu"
    tiny: bool
    rows: Path
    failed: list[str] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def emit(self, what: str, **values: Any) -> Row:
        """Write a row. It is kept from here on, however the step ends."""
        row: Row = {"what": what} | values
        if self.tiny:
            row |= {"tiny": True, "device": self.device}
        write_line(self.rows, row)
        return row

    @contextmanager
    def case(self, what: str) -> Iterator[None]:
        """Measure one thing. If it raises, the row has the reason, the other cases are measured, and the step fails."""
        try:
            yield
        except Exception as error:
            self.failed.append(what)
            at = traceback.extract_tb(error.__traceback__)[-1]
            self.emit(what, failed=f"{type(error).__name__}: {str(error)[:400]}", at=f"{at.filename}:{at.lineno}")
            traceback.print_exc()
        finally:
            self._free()

    def synchronise(self) -> None:
        """Wait until the device has done everything."""
        if self.on_gpu:
            import torch

            torch.cuda.synchronize()

    def _free(self) -> None:
        """The next case must find neither compiled code nor memory of this one."""
        compiler = sys.modules.get("torch._dynamo")
        if compiler is not None:
            compiler.reset()
        if self.on_gpu:
            import torch

            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def write_line(path: Path, line: Row) -> None:
    """Append one JSON line by one write, so that a kill tears at most the last one."""
    text = json.dumps(_finite(line), allow_nan=False)
    print(text, flush=True)
    with open(path, "ab", buffering=0) as file:
        file.write(text.encode() + b"\n")


def _finite(value: Any) -> Any:
    """JSON has neither nan nor infinity: they become text, which no expectation takes for a number."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value
