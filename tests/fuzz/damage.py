"""Damages the run directory of a case, from a seed. Every damage returns what it did."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz import forged
from tests.fuzz.stage import Stage
from tests.fuzz.values import TEXTS

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Done:
    """A damage that was done. `area`: events, checkpoints, metrics, ...; `text`: file and kind."""

    area: str
    kind: str
    text: str


def damage(stage: Stage, chance: random.Random, stranger: tuple[int, int], only: Sequence[str] = ()) -> Done:
    """Do one damage. `stranger`: pid and start ticks of a process that belongs to no run. `only`: areas or kinds."""
    while True:
        area = chance.choices(list(AREAS), weights=[weight for weight, _ in AREAS.values()])[0]
        found = [path for path in AREAS[area][1](stage) if os.path.lexists(path)]
        if not found:
            continue
        path = chance.choice(sorted(found))
        kinds = _kinds(path, area)
        name = chance.choice(sorted(kinds))
        if only and area not in only and name not in only:
            continue
        detail = kinds[name](Target(stage, path, chance, stranger))
        if detail is not None:
            return Done(area, name, f"{path.relative_to(stage.run_dir.path)}: {name} {detail}".strip())


@dataclass(frozen=True, slots=True)
class Target:
    stage: Stage
    path: Path
    chance: random.Random
    stranger: tuple[int, int]


Kind = Callable[[Target], str | None]  # None: it cannot be done here


def _checkpoint_files(stage: Stage) -> list[Path]:
    return [path for path in stage.run_dir.checkpoints.rglob("*") if path.is_file() and path.name != "COMPLETE.json"]


AREAS: dict[str, tuple[int, Callable[[Stage], Sequence[Path]]]] = {
    "events": (8, lambda s: list(s.run_dir.events.glob("*.jsonl"))),
    "manifest": (5, lambda s: list(s.run_dir.checkpoints.glob("*/COMPLETE.json"))),
    "checkpoint": (4, _checkpoint_files),
    "step folder": (2, lambda s: list(s.run_dir.checkpoints.iterdir())),
    "resolved": (3, lambda s: [s.run_dir.resolved]),
    "metrics": (3, lambda s: [s.run_dir.metrics]),
    "lock": (2, lambda s: [s.run_dir.lock]),
    "verdict": (1, lambda s: [s.run_dir.verdict, s.run_dir.facts]),
    "config": (1, lambda s: [s.run_dir.config]),
    "attempts": (2, lambda s: [p for p in (s.run_dir.path / "attempts").rglob("*") if p.is_file()]),
    "output": (1, lambda s: [s.run_dir.report, *(s.run_dir.path / "watches").glob("*"), *s.run_dir.plots.glob("*")]),
    "folder": (4, lambda s: [p for p in s.run_dir.path.iterdir() if p.is_dir()]),
}


def _kinds(path: Path, area: str) -> dict[str, Kind]:
    if path.is_dir():
        return FILE_SYSTEM
    kinds = {**FILE_SYSTEM, **BYTES}
    if path.suffix in (".jsonl", ".json"):
        kinds |= JSON
    if path.suffix in (".jsonl", ".log", ".toml", ".md"):
        kinds |= LINES
    if area == "events":
        kinds |= EVENTS
    if area == "lock":
        kinds |= LOCK
    if area == "manifest" and path.is_file():
        kinds |= MANIFEST
    return kinds


# --- bytes ----------------------------------------------------------------------------------------------


def _flip(target: Target) -> str | None:
    content = bytearray(target.path.read_bytes())
    if not content:
        return None
    places = [target.chance.randrange(8 * len(content)) for _ in range(target.chance.choice((1, 1, 1, 8)))]
    for place in places:
        content[place // 8] ^= 1 << place % 8
    target.path.write_bytes(content)
    return f"bits {places}"


def _cut_end(target: Target) -> str | None:
    size = target.path.stat().st_size
    kept = target.chance.randrange(size) if size else 0
    os.truncate(target.path, kept)
    return f"{kept} of {size} bytes kept"


def _cut_front(target: Target) -> str | None:
    content = target.path.read_bytes()
    start = target.chance.randrange(len(content)) if content else 0
    target.path.write_bytes(content[start:])
    return f"from byte {start}"


def _zero_half(target: Target) -> str | None:
    content = target.path.read_bytes()
    half = len(content) // 2
    target.path.write_bytes(content[:half] + bytes(len(content) - half))
    return ""


def _empty(target: Target) -> str | None:
    target.path.write_bytes(b"")
    return ""


def _append(target: Target) -> str | None:
    tail = target.chance.choice((b"\xff\xfe\x00", b"{", b"\n\n\n", b"\x00" * 5000, b"A" * 200_000, b"\xf0\x9f\n"))
    with open(target.path, "ab") as file:
        file.write(tail)
    return f"{tail[:8]!r}"


def _garbage(target: Target) -> str | None:
    target.path.write_bytes(target.chance.randbytes(target.chance.choice((1, 100, 5000))))
    return ""


BYTES: dict[str, Kind] = {
    "flip": _flip,
    "cut end": _cut_end,
    "cut front": _cut_front,
    "zero half": _zero_half,
    "empty": _empty,
    "append": _append,
    "garbage": _garbage,
}


# --- lines ----------------------------------------------------------------------------------------------


def _delete_line(target: Target) -> str | None:
    lines = target.path.read_bytes().splitlines(keepends=True)
    if not lines:
        return None
    number = target.chance.randrange(len(lines))
    target.path.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
    return f"line {number}"


def _double_line(target: Target) -> str | None:
    lines = target.path.read_bytes().splitlines(keepends=True)
    if not lines:
        return None
    number = target.chance.randrange(len(lines))
    target.path.write_bytes(b"".join([*lines[: number + 1], *lines[number:]]))
    return f"line {number}"


def _swap_lines(target: Target) -> str | None:
    lines = target.path.read_bytes().splitlines(keepends=True)
    if len(lines) < 2:
        return None
    one, other = target.chance.sample(range(len(lines)), 2)
    lines[one], lines[other] = lines[other], lines[one]
    target.path.write_bytes(b"".join(lines))
    return f"lines {one} and {other}"


def _windows_ends(target: Target) -> str | None:
    target.path.write_bytes(target.path.read_bytes().replace(b"\n", b"\r\n"))
    return ""


LINES: dict[str, Kind] = {
    "delete line": _delete_line,
    "double line": _double_line,
    "swap lines": _swap_lines,
    "windows ends": _windows_ends,
}


# --- JSON values ----------------------------------------------------------------------------------------


def _value(target: Target) -> str | None:
    """Replace one value of the document, or of one line, by one of another type or size."""
    return _change_json(target, _replace_value)


def _drop_key(target: Target) -> str | None:
    return _change_json(target, _remove_key)


def _future(target: Target) -> str | None:
    """A version of the future or of the past, and an unknown key."""
    version = target.chance.choice((0, -1, 2, 99, "2", None))

    def change(raw: dict[str, Any], _chance: random.Random) -> tuple[str, str]:
        key = "v" if "v" in raw else "version"
        return json.dumps(raw | {key: version, "unknown": {"x": [1]}}), f"version {version!r}"

    return _change_json(target, change)


def _change_json(target: Target, change: Callable[[Any, random.Random], tuple[str, str]]) -> str | None:
    try:
        text = target.path.read_text(encoding="utf-8")
        if target.path.suffix == ".json":
            changed, detail = change(json.loads(text), target.chance)
            target.path.write_text(changed, encoding="utf-8")
            return detail
        lines = text.splitlines()
        number = target.chance.randrange(len(lines))
        lines[number], detail = change(json.loads(lines[number]), target.chance)
        target.path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except (ValueError, IndexError, TypeError, AttributeError):
        return None
    return f"line {number} {detail}"


def _lose_files(target: Target) -> str | None:
    """A manifest that names no file, or lacks one that the format needs."""

    def change(raw: dict[str, Any], chance: random.Random) -> tuple[str, str]:
        lost = chance.choice(("all", ".metadata", "tensors"))
        kept = {
            name: about
            for name, about in raw.get("files", {}).items()
            if lost != "all" and (name == ".metadata") is (lost == "tensors")
        }
        return json.dumps(raw | {"files": kept}), f"without {lost} files"

    return _change_json(target, change)


MANIFEST: dict[str, Kind] = {"lose files": _lose_files}

_MARK = "\uffff"


def _replace_value(raw: Any, chance: random.Random) -> tuple[str, str]:
    places = list(_places(raw))
    holder, key = chance.choice(places)
    value = chance.choice(TEXTS)
    holder[key] = _MARK
    text = json.dumps(raw, ensure_ascii=False).replace(json.dumps(_MARK, ensure_ascii=False), value)
    return text, f"{key} = {value[:30]}"


def _remove_key(raw: Any, chance: random.Random) -> tuple[str, str]:
    places = [(holder, key) for holder, key in _places(raw) if isinstance(holder, dict)]
    holder, key = chance.choice(places)
    del holder[key]
    return json.dumps(raw), key


def _places(raw: Any) -> list[tuple[Any, Any]]:
    """Each value of a document by its container and its key there."""
    keys = raw.keys() if isinstance(raw, dict) else range(len(raw)) if isinstance(raw, list) else ()
    found = [(raw, key) for key in keys]
    return found + [place for holder, key in found for place in _places(holder[key])]


JSON: dict[str, Kind] = {"value": _value, "drop key": _drop_key, "future": _future}


# --- events ---------------------------------------------------------------------------------------------


def _foreign_line(target: Target) -> str | None:
    """A line that no program of the run has written."""
    pid, ticks = target.stranger
    now_s, writer = time.time(), target.path.stem
    number = target.chance.choice((0, 3, 1_000_000, -1, 10**30))
    time_s = target.chance.choice((now_s, now_s - HOUR_S, now_s + HOUR_S, 0.0, 1e300))
    events: tuple[dict[str, Any], ...] = (
        {"kind": "child_started", "attempt": 1, "role": "trainer", "pid": pid, "start_ticks": ticks, "log": "/x"},
        {"kind": "child_started", "attempt": 99, "role": "trainer", "pid": pid, "start_ticks": ticks, "log": "/x"},
        {"kind": "an_event_of_the_future", "attempt": 1},
        {"kind": "progress", "attempt": 1, "step": 10**9, "loss": 1.0, "tokens_per_s": 1.0, "tokens_seen": 1},
        {"kind": "phase", "attempt": 7, "name": "train", "detail": ""},
        {"kind": "checkpoint_unreadable", "attempt": 1, "step": 8, "problem": "x"},
    )
    event = target.chance.choice(events)
    line = json.dumps({"v": 2, "t": time_s, "w": writer, "n": number, "id": "stranger"} | event)
    lines = target.path.read_bytes().splitlines(keepends=True)
    at = target.chance.randrange(len(lines) + 1)
    lines.insert(at, line.encode() + b"\n")
    target.path.write_bytes(b"".join(lines))
    return f"line {at}: {line}"


def _shift_clock(target: Target) -> str | None:
    """Every time of the file is that of a clock that is wrong."""
    by_s = target.chance.choice((HOUR_S, -HOUR_S, 10 * 8760 * HOUR_S, -1e9, 1e18))
    lines = []
    for line in target.path.read_text(encoding="utf-8").splitlines():
        raw = json.loads(line)
        lines.append(json.dumps(raw | {"t": raw["t"] + by_s}, separators=(",", ":"), ensure_ascii=False))
    target.path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return f"by {by_s:g} s"


def _stranger_child(target: Target) -> str | None:
    """The child that was started is another process."""
    pid, ticks = target.stranger
    changed = False
    lines = []
    for line in target.path.read_text(encoding="utf-8").splitlines():
        raw = json.loads(line)
        if raw.get("kind") == "child_started":
            raw, changed = raw | {"pid": pid, "start_ticks": ticks}, True
        lines.append(json.dumps(raw, separators=(",", ":"), ensure_ascii=False))
    target.path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return f"pid {pid}" if changed else None


def _forge(target: Target) -> str | None:
    """A record with a strange number or text, and a checksum that fits."""
    try:
        line = forged.forge(target.path, target.chance, is_trainers=target.path.stem.startswith("trainer"))
    except (ValueError, IndexError):
        return None
    with open(target.path, "ab") as file:
        file.write(line)
    return f"{line[:300]!r}"


EVENTS: dict[str, Kind] = {
    "forge": _forge,
    "foreign line": _foreign_line,
    "shift clock": _shift_clock,
    "stranger child": _stranger_child,
}


def _name_stranger(target: Target) -> str | None:
    pid, ticks = target.stranger
    target.path.write_text(f"{pid}:{ticks} {os.uname().nodename}\n", encoding="utf-8")
    return f"pid {pid}"


LOCK: dict[str, Kind] = {"name stranger": _name_stranger}


# --- the file system ------------------------------------------------------------------------------------


def _delete(target: Target) -> str | None:
    _remove(target.path)
    return ""


def _fifo(target: Target) -> str | None:
    _remove(target.path)
    os.mkfifo(target.path)
    return ""


def _other_type(target: Target) -> str | None:
    """A folder instead of a file, or a file instead of a folder."""
    was_folder = target.path.is_dir()
    _remove(target.path)
    if was_folder:
        target.path.write_text("x", encoding="utf-8")
    else:
        target.path.mkdir()
    return ""


def _link(target: Target) -> str | None:
    """A link to a file or folder of the user's, to a device, to nothing or to itself."""
    canary = target.stage.canary
    to = target.chance.choice((canary / "file.txt", canary / "folder", Path("/dev/zero"), Path("gone"), target.path))
    _remove(target.path)
    target.path.symlink_to(to)
    return f"to {to}"


def _move_and_link(target: Target) -> str | None:
    """Moved to another disk, with a link left in its place."""
    moved = target.stage.case / f"moved-{target.path.name}"
    target.path.rename(moved)
    target.path.symlink_to(moved)
    return ""


def _swap(target: Target) -> str | None:
    """Exchange it with the one of the same kind beside it."""
    parent = target.path.parent
    beside = [p for p in sorted(parent.iterdir()) if p != target.path and p.is_dir() == target.path.is_dir()]
    if target.path.name == "COMPLETE.json":
        beside = [p for p in sorted(parent.parent.glob("*/COMPLETE.json")) if p != target.path]
    if not beside:
        return None
    other = target.chance.choice(beside)
    aside = target.stage.case / "swap"
    target.path.rename(aside)
    other.rename(target.path)
    aside.rename(other)
    return f"with {other.name}"


def _rename(target: Target) -> str | None:
    name = target.chance.choice(("step_7", "step_1000000", "step_" + "9" * 30, "x", ".going-x.1", "a\nb", "\udcff"))
    if os.path.lexists(target.path.with_name(name)):
        return None
    target.path.rename(target.path.with_name(name))
    return f"to {name!r}"


def _times(target: Target) -> str | None:
    time_s = target.chance.choice((0.0, time.time() + 10 * 8760 * HOUR_S))
    os.utime(target.path, (time_s, time_s))
    return f"{time_s:g}"


def _no_rights(target: Target) -> str | None:
    target.path.chmod(0)
    return ""


FILE_SYSTEM: dict[str, Kind] = {
    "delete": _delete,
    "fifo": _fifo,
    "other type": _other_type,
    "link": _link,
    "move and link": _move_and_link,
    "swap": _swap,
    "rename": _rename,
    "times": _times,
    "no rights": _no_rights,
}


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
