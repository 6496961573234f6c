"""Looks at every clip of a source: the child of `prime-train data audio scan`, as cli/terminal/child.py describes it.

Reads headers, and with `decode` one crop of each clip, because a header may stand before damaged bytes.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from prime_train.core.errors import ExitCode, UserError
from prime_train.spec import Source
from prime_train.trainer.audio.clip_files import Columns
from prime_train.trainer.audio.clip_folders import Folder
from prime_train.trainer.audio.clips import ClipError, ClipInfo, read_crop, read_info
from prime_train.trainer.audio.columns import find_columns, refuse_other_names
from prime_train.trainer.audio.log_mel import MelSettings
from prime_train.trainer.audio.pictures import draw_spectrograms
from prime_train.trainer.audio.sources import find_files
from prime_train.trainer.audio.tables import ClipTable, open_clips

_SHOWN = 50  # broken rows that are named; all are counted
_REPORTED_ROWS = 100  # between two lines of progress
_LENGTHS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)  # quantiles


@dataclass
class _ClipCounts:
    """What the scan has counted so far."""

    rates: Counter[int] = field(default_factory=Counter)
    codecs: Counter[str] = field(default_factory=Counter)
    channels: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    broken: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def main() -> int:
    given = json.load(sys.stdin)
    try:
        source = Source(kind="audio", path=given["path"], subset=given["subset"], split=given["split"])
        path = find_files(source, given["path"])
        named = given["audio_field"] is not None
        columns = Columns(audio=given["audio_field"], label=given["label_field"]) if named else find_columns(path)
        refuse_other_names([path], columns)
        table = open_clips(path, columns)
        result = scan(table, given["clip_s"], MelSettings(), decode=given["decode"], most_rows=given.get("most_rows"))
        result["columns"] = asdict(columns)
        if given["picture"]:
            result["picture"] = draw_spectrograms(table, Path(given["picture"]), given["clip_s"], MelSettings())
    except UserError as error:
        _print({"error": error.parts() | {"exit_code": int(error.exit_code)}})
        return error.exit_code
    _print({"result": result})
    return ExitCode.OK


def _print(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def scan(
    table: ClipTable, clip_s: float, mel: MelSettings, *, decode: bool, most_rows: int | None = None
) -> dict[str, Any]:
    """What the clips are. `clip_s`: the length of a crop, in seconds. `most_rows` are opened, spread over all."""
    found = _ClipCounts()
    count = min(table.rows, most_rows or table.rows)
    chosen = (np.arange(count) * table.rows // count).tolist()
    _print({"phase": "reading clips", "total": count})
    look = partial(_look, table, clip_s, mel, decode=decode)
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        for first in range(0, count, _REPORTED_ROWS):  # not all at once: each waiting row takes memory
            rows = chosen[first : first + _REPORTED_ROWS]
            for row, (info, problem) in zip(rows, threads.map(look, rows), strict=True):
                _count(found, table, row, info, problem)
            _print({"done": len(rows)})
    labels = table.count_labels()
    absent = [name for part in table.parts if isinstance(part, Folder) for name in part.absent]
    of_rows = np.bincount(table.list_labels().rows, minlength=table.rows)  # labels
    return {
        "rows": table.rows,
        "scanned": count,
        "files": sum(part.rows if isinstance(part, Folder) else 1 for part in table.parts),
        "hours": round(sum(found.seconds) / 3600, 3),
        "seconds": {f"{at:g}": round(float(np.quantile(found.seconds, at)), 3) for at in _LENGTHS if found.seconds},
        "shorter_than_crop": sum(seconds < clip_s for seconds in found.seconds),
        "crop_s": clip_s,
        "rates_hz": {str(rate): count for rate, count in sorted(found.rates.items())},
        "codecs": dict(found.codecs.most_common()),
        "channels": {str(number): count for number, count in sorted(found.channels.items())},
        "broken": sum(found.reasons.values()),
        "broken_reasons": dict(found.reasons.most_common(_SHOWN)),
        "broken_rows": found.broken,
        "labels": int((labels > 0).sum()),
        "without_label": int((of_rows == 0).sum()),
        "most_labels": int(of_rows.max()),
        "absent": len(absent),
        "absent_first": absent[0] if absent else None,
        "rarest_label": int(labels[labels > 0].min()) if labels.any() else 0,
        "commonest_label": int(labels.max()) if labels.any() else 0,
        "decoded": decode,
    }


def _look(table: ClipTable, clip_s: float, mel: MelSettings, row: int, *, decode: bool) -> tuple[ClipInfo | None, str]:
    """The header of a clip, and what is wrong with it."""
    try:
        content = table.read_clip(row)
        info = read_info(content)
        if decode:
            read_crop(content, mel.sample_rate, round(clip_s * mel.sample_rate), 0.5)
    except ClipError as error:
        return None, str(error)
    return info, ""


def _count(found: _ClipCounts, table: ClipTable, row: int, info: ClipInfo | None, problem: str) -> None:
    if info is None:
        found.reasons[problem] += 1
        if len(found.broken) < _SHOWN:
            found.broken.append({"row": row, "where": table.describe(row), "why": problem})
        return
    found.rates[info.rate] += 1
    found.codecs[info.codec] += 1
    found.channels[info.channels] += 1
    found.seconds.append(info.seconds)


if __name__ == "__main__":
    sys.exit(main())
