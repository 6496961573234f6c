"""A record that no run can have, with a checksum that fits: every command goes on, and `status` names its line."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.commands import prime_train
from tests.unit.views.written_runs import BEGAN_S, WHOLE_LIFE, write_metrics, write_run

_LOSS = {"loss": 1.0, "tokens_per_s": 1.0, "tokens_seen": 1}
FORGED: dict[str, tuple[str, dict[str, Any], str]] = {
    "step": ("trainer-002-rank0", {"kind": "progress", "attempt": 2, "step": 10**15} | _LOSS, "its step is 1,000,000,"),
    "position": ("supervisor", {"n": 2**63 - 1, "kind": "clock_jumped", "jump_s": 1.0}, "its position is outside"),
}
# Each with the exit codes that it may have: the logs of this run are gone, and no supervisor runs it.
COMMANDS = {
    ("status", "forged"): {0},
    ("status", "forged", "--json"): {0},
    ("report", "forged"): {0},
    ("logs", "forged"): {0, 2},
    ("diagnose", "runs/forged"): {1, 2, 4},
    ("ckpt", "list", "forged"): {0},
    ("stop", "forged"): {2},
}


@pytest.mark.parametrize("name", FORGED)
def test_every_command_goes_on_after_a_forged_record(tmp_path: Path, name: str) -> None:
    writer, values, words = FORGED[name]
    run_dir = write_run(tmp_path / "runs" / "forged", WHOLE_LIFE)
    write_metrics(run_dir, 100)
    path = run_dir.events / f"{writer}.jsonl"
    lines = path.read_bytes().count(b"\n")
    raw = {"v": 2, "t": BEGAN_S + 30, "w": writer, "n": lines, "id": ""} | values
    body = json.dumps(raw, separators=(",", ":"))[:-1].encode()
    with path.open("ab") as file:
        file.write(body + b',"c":"%08x"}\n' % zlib.crc32(body))
    for command, codes in COMMANDS.items():
        done = prime_train(*command, cwd=tmp_path)
        assert done.returncode in codes, (command, done.stderr)
        if command == ("status", "forged", "--json"):
            assert f"{path.name}: 1 damaged line, first damaged line {lines + 1}: {words}" in done.stdout
