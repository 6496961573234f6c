"""Forges records of a run: lines whose checksum fits, as who can write into the run directory makes them."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any, get_args

from prime_train.events.record import _KINDS, _fields_of
from prime_train.events.trainer_events import TrainerEvent

_TRAINERS = {kind.kind for kind in get_args(TrainerEvent)}
_POSITIONS = (10**10, 10**15, 2**62, 2**63 - 1, 2**64, -1)
_VALUES: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    int: (0, -1, 10**6, 10**12, 10**15, 2**53, 2**63 - 1, 10**400),
    float: (0.0, -1.0, 1e15, 1e100, 1e308, -1e308, float("inf"), float("nan"), 10**400),
    str: ("", "x", "trainer", "a\x1b[2Jb", "x\n| y", "\ud800", "../../x", "x" * 100_000),
    tuple: ([], ["trainer"], ["a\nb"] * 1000),
}


def seal(raw: dict[str, Any]) -> bytes:
    """A line with a checksum that fits."""
    body = json.dumps(raw, ensure_ascii=False, separators=(",", ":"))[:-1].encode(errors="backslashreplace")
    return body + b',"c":"%08x"}\n' % zlib.crc32(body)


def forge(events: Path, chance: random.Random, *, is_trainers: bool) -> bytes:
    """A record of a kind that this writer has, behind its last one. One of its values, or its position, is strange."""
    last = json.loads(events.read_bytes().splitlines()[-1])
    kind = chance.choice([kind for kind in _KINDS if (kind in _TRAINERS) is is_trainers])
    raw = {"v": 2, "t": last["t"], "w": events.stem, "n": last["n"] + 1, "id": last["id"], "kind": kind}
    values: dict[str, Any] = {}
    for name, kinds, _ in _fields_of(kind):
        of = next(one for one in _VALUES if one in kinds)
        values[name] = 1 if name == "attempt" else _VALUES[of][0 if of is not str else 1]
    strange = chance.choice(["n", *values])
    if strange == "n":
        raw["n"] = chance.choice(_POSITIONS)
    else:
        of = next(one for name, kinds, _ in _fields_of(kind) if name == strange for one in _VALUES if one in kinds)
        values[strange] = chance.choice(_VALUES[of])
    return seal(raw | values)
