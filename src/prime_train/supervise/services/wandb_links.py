"""Finds the page of a run at W&B, from what its mirror and its trainer have written. Asks no service."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from prime_train.core.outside import MARK_BYTES, RECORD_BYTES, open_regular, read_json
from prime_train.core.rundir import RunDir

_PAGE = rb"(https://[A-Za-z0-9.:/_%-]{1,300}/runs/[A-Za-z0-9_.-]{1,128})"
_PRINTED = re.compile(_PAGE)
# wandb 0.31, sdk/wandb_run.py: "wandb: ROCKET View run at URL" at the start, "View run NAME at: URL" at the end. On a
# terminal the words have colours.
_OWN = re.compile(rb"wandb[^\n]{0,24}: [^\n]{0,24}View run [^\n]{0,300}?" + _PAGE)
_MOST_ATTEMPTS, _MOST_LOGS = 3, 8


def find_wandb_link(run_dir: RunDir) -> str | None:
    """As `find_link`, with the config of the run directory."""
    with suppress(OSError, ValueError):
        config = read_json(run_dir.resolved, RECORD_BYTES, run_dir.path)
        return find_link(run_dir, config if isinstance(config, dict) else {})
    return None


def find_link(run_dir: RunDir, config: Mapping[str, Any]) -> str | None:
    """The page of the mirror, else the one that the trainer's own W&B printed to the log of an attempt.

    `config`: the document of resolved.json. None if not known: the entity may be the default of a login.
    """
    tables = config.get("prime_train")
    table = tables.get("wandb") if isinstance(tables, dict) else None
    if isinstance(table, dict) and table.get("project") and table.get("mode") != "offline":
        return _find_mirrored(run_dir, table) or _find_own(run_dir)
    return _find_own(run_dir)


def _find_mirrored(run_dir: RunDir, table: Mapping[str, Any]) -> str | None:
    """The address that W&B printed to the mirror's log, else one made from entity, project and id."""
    with suppress(OSError), open_regular(run_dir.wandb / "mirror.log", run_dir.path) as log:
        if found := _PRINTED.findall(log.read(MARK_BYTES)):
            return str(found[-1].decode())
    entity, project = table.get("entity"), table["project"]
    with suppress(OSError, ValueError, KeyError, TypeError):
        run_id = read_json(run_dir.wandb / "mirror.json", MARK_BYTES, run_dir.path)["run_id"]
        if entity and isinstance(run_id, str):
            parts = (str(entity), str(project), "runs", run_id)
            return "https://wandb.ai/" + "/".join(quote(part, safe="") for part in parts)
    return None


def _find_own(run_dir: RunDir) -> str | None:
    """The page that the latest attempt printed which printed one. None if it printed two: neither is certain."""
    for attempt in sorted(_list(run_dir.attempt(1).parent), reverse=True)[:_MOST_ATTEMPTS]:
        logs = sorted(path for path in _list(attempt) if path.suffix == ".log")[:_MOST_LOGS]
        if found := {page for log in logs for page in _read_pages(log, run_dir.path)}:
            return found.pop() if len(found) == 1 else None
    return None


def _list(folder: Path) -> list[Path]:
    with suppress(OSError), os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries]
    return []


def _read_pages(log: Path, within: Path) -> Iterator[str]:
    """The pages in the first and the last lines: wandb prints its page when it starts and when it ends."""
    with suppress(OSError), open_regular(log, within) as file:
        text = file.read(MARK_BYTES)
        size = os.fstat(file.fileno()).st_size
        if size > MARK_BYTES:
            file.seek(max(MARK_BYTES, size - MARK_BYTES))
            text += b"\n" + file.read(MARK_BYTES)
        if b"View run " in text:
            yield from (page.decode() for page in _OWN.findall(text))
