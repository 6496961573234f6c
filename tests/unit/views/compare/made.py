"""Writes small runs with a config and metrics, to be listed and compared."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from prime_train.core.rundir import RunDir
from prime_train.events import Record, RunOpened
from prime_train.spec import Data, Optim, Run, RunSpec, Source, to_json
from tests.unit.views.written_runs import WHOLE_LIFE, records, write_events


def write_compared(
    folder: Path, name: str, *, seed: int = 1, lr: float = 1e-3, at_s: float = 0.0, **run: Any
) -> RunDir:
    """A finished run of two attempts that began `at_s` seconds after the others, with resolved.json."""
    run_dir = RunDir(folder / name)
    write_events(run_dir, [_moved(record, at_s, name) for record in records(WHOLE_LIFE)])
    spec = RunSpec(
        run=Run(name=name, max_steps=100, dir=str(folder), seed=seed, **run),
        data=Data(sources=(Source(kind="python-stdlib"),)),
        optim=Optim(lr=lr),
    )
    run_dir.resolved.write_text(to_json(spec))
    return run_dir


def _moved(record: Record, at_s: float, name: str) -> Record:
    event = replace(record.event, run=name) if isinstance(record.event, RunOpened) else record.event
    return replace(record, time_s=record.time_s + at_s, event=event)


def write_lines(run_dir: RunDir, lines: Iterable[dict[str, Any]]) -> None:
    """metrics.jsonl with these lines; NaN and Infinity are written as such."""
    run_dir.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
