"""Looks at the clips that --data names, for a run on audio. Trains nothing, and decodes nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from prime_train.choose.audio import AudioWishes, ClipsSeen
from prime_train.cli.init.flags import CHEAPEST, HERE, Flags
from prime_train.cli.init.place import find_here, parse_place
from prime_train.cli.terminal.child import run_child
from prime_train.core.errors import UserError
from prime_train.core.units import format_bytes

_CHILD = "prime_train.trainer.audio.scan_program"
_MOST_ROWS = 2000  # whose headers are read; all rows are counted, and their labels
_MOST_PARQUET_BYTES = 2**32  # a look at parquet copies it as Arrow, as the first start of a run does
_BROKEN = 0.02  # the default of audio.most_broken


def read_audio_flags(flags: Flags) -> tuple[AudioWishes, tuple[str, ...]]:
    """The wishes that the flags stand for, and lines about the clips. Raises UserError."""
    assert flags.data is not None
    gpus, gpu, machines = _find_gpus(flags)
    seen, notes = look_at_clips(flags.data, flags.subset)
    name = flags.name or _name(flags.data, flags.subset)
    return AudioWishes(name, flags.data, flags.subset, seen, gpus, gpu, machines, flags.steps), notes


def look_at_clips(named: str, subset: str) -> tuple[ClipsSeen | None, tuple[str, ...]]:
    """What the clips are, and lines about it; None for a name on the hub. Raises UserError."""
    path = Path(named).expanduser()
    if not path.exists() and named.count("/") == 1 and not named.startswith((".", "/", "~")):
        return None, (f"data: {named} on the hub; its clips are not looked at",)
    inside = path / subset if subset and (path / subset).is_dir() else path
    parquet_bytes = sum(file.stat().st_size for file in inside.rglob("*.parquet") if file.is_file())
    if parquet_bytes > _MOST_PARQUET_BYTES:
        return None, (f"data: {format_bytes(parquet_bytes)} of parquet are not looked into: they would be copied",)
    request = {
        "path": str(inside.absolute()),
        "subset": subset if inside == path else "",
        "split": "train",
        "audio_field": None,
        "label_field": None,
        "clip_s": 5.0,
        "decode": False,
        "picture": None,
        "most_rows": _MOST_ROWS,
    }
    found = run_child(_CHILD, request, does="reads the clips", extra="audio")
    if not found["seconds"]:
        fix = f"look at them: prime-train data audio scan {named} --decode"
        raise UserError("no clip can be read", f"--data {named}", "a run decodes them", fix)
    return _to_seen(found), tuple(_describe(found))


def _to_seen(found: dict[str, Any]) -> ClipsSeen:
    rates = found["rates_hz"]
    return ClipsSeen(
        rows=found["rows"],
        median_s=found["seconds"]["0.5"],
        rate_hz=int(max(rates, key=lambda rate: rates[rate])),
        labels=found["labels"],
        most_labels=found["most_labels"],
        audio_field=found["columns"]["audio"],
        label_field=found["columns"]["label"],
    )


def _describe(found: dict[str, Any]) -> list[str]:
    column = found["columns"]["label"]
    labels = f"{found['labels']:,} labels in {column}" if column else "no column of integers with labels"
    lines = [f"data: {found['rows']:,} clips in {found['files']:,} files, {labels}"]
    if found["broken"]:
        share = found["broken"] / found["scanned"]
        ends = ", and a run ends above 2%: repair them, or raise audio.most_broken" if share > _BROKEN else ""
        lines.append(f"data: {found['broken']:,} of {found['scanned']:,} clips cannot be opened{ends}")
    return lines


def _find_gpus(flags: Flags) -> tuple[int, str, int]:
    """(all GPUs, their kind, machines); no GPU for a run on the CPU of this machine."""
    if flags.gpus in (None, HERE):
        try:
            here = find_here()
        except UserError:
            return 0, "", 1
        return here.gpus, here.id, 1
    if flags.gpus == CHEAPEST:
        why = "the time of a step of an encoder was not measured, so offers are not compared"
        raise UserError("no machine is searched for a run on audio", "--gpus cheapest", why, "--gpus 1xrtx4090")
    hardware, machines = parse_place(flags.gpus or "")
    return hardware.gpus, hardware.id, machines


def _name(named: str, subset: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(named).stem).strip("-.").lower()
    return "-".join(part for part in (plain or "clips", subset.lower()) if part)
