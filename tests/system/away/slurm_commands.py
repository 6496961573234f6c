"""Stand-ins of sbatch, squeue, scancel and scontrol: each records its arguments and plays what a test has laid out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

COMMANDS = ("sbatch", "squeue", "scancel", "scontrol")

_PROGRAM = """#!{python}
import json, os, sys, time
from pathlib import Path
folder = Path({folder!r})
name = os.path.basename(sys.argv[0])
with open(folder / "calls.jsonl", "a") as file:
    file.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
answers = json.loads((folder / "answers.json").read_text())
listed = answers.get(name, [["", "", 0]])
number = sum(json.loads(line)[0] == name for line in open(folder / "calls.jsonl"))
out, err, code = listed[min(number, len(listed)) - 1]
if code == "hang":
    time.sleep(600)
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""


class Commands:
    """The folder of the stand-ins, to be the first of PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        for name in COMMANDS:
            file = folder / name
            file.write_text(_PROGRAM.format(python=sys.executable, folder=str(folder)), encoding="utf-8")
            file.chmod(0o755)
        self.answer()

    def answer(self, **answers: Sequence[tuple[str, str, int | str]]) -> None:
        """Output, error output and exit code of each call in turn; the last one counts for further calls."""
        (self.folder / "answers.json").write_text(json.dumps(answers), encoding="utf-8")
        (self.folder / "calls.jsonl").write_text("", encoding="utf-8")

    def calls(self, name: str) -> list[list[str]]:
        """The arguments of each call of a command."""
        lines = (self.folder / "calls.jsonl").read_text(encoding="utf-8").splitlines()
        return [call[1:] for call in map(json.loads, lines) if call[0] == name]


def row(job_id: str, state: str, reason: str = "None") -> str:
    """A line of squeue."""
    return f"{job_id}|{state}|0:10|1:00|node1|{reason}\n"
