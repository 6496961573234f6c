"""Finds the page at W&B, from what its mirror has written. Asks no service."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from prime_train.core.outside import MARK_BYTES, open_regular, read_json
from prime_train.core.rundir import RunDir

_PRINTED = re.compile(rb"https://[A-Za-z0-9.:/_%-]{1,300}/runs/[A-Za-z0-9_.-]{1,128}")


def find_link(run_dir: RunDir, config: Mapping[str, Any]) -> str | None:
    """The address that W&B printed to the mirror's log, else one made from entity, project and id; None if not known.

    `config`: the document of resolved.json.
    """
    tables = config.get("prime_train")
    table = tables.get("wandb") if isinstance(tables, dict) else None
    if not isinstance(table, dict) or not table.get("project") or table.get("mode") == "offline":
        return None
    printed = _find_printed(run_dir)
    if printed is not None:
        return printed
    entity, project = table.get("entity"), table["project"]
    with suppress(OSError, ValueError, KeyError, TypeError):
        run_id = read_json(run_dir.wandb / "mirror.json", MARK_BYTES, run_dir.path)["run_id"]
        if entity and isinstance(run_id, str):
            return f"https://wandb.ai/{quote(str(entity))}/{quote(str(project))}/runs/{quote(run_id)}"
    return None  # the entity is the default for a login, which only W&B knows


def _find_printed(run_dir: RunDir) -> str | None:
    with suppress(OSError), open_regular(run_dir.wandb / "mirror.log", run_dir.path) as log:
        found = _PRINTED.findall(log.read(MARK_BYTES))
        return found[-1].decode() if found else None
    return None
