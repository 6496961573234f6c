"""Writes samples as lines of JSON, in the child of a watch. `sampler.load` reads them.

It imports little, because the child stays in memory as long as the run.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

_WRITING = threading.Lock()  # a child may write from several threads


def write(value: object) -> None:
    """Write a sample as one line of JSON. A sampler's program calls this."""
    with _WRITING:
        sys.stdout.write(dump(value) + "\n")
        sys.stdout.flush()


def dump(value: object) -> str:
    """A value as JSON: dataclasses, named tuples, paths and sets too. Raises TypeError for another type."""
    return json.dumps(value, default=_to_plain, separators=(",", ":"))


def _to_plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):  # `dataclasses` would be imported for this alone
        return {name: getattr(value, name) for name in value.__dataclass_fields__}
    return list(value) if isinstance(value, set | frozenset) else os.fspath(value)
