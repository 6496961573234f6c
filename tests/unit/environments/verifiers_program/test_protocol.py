"""The program in an interpreter that has a `verifiers` of ours and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from prime_train.environments import verifiers_program

FOLDER = Path(verifiers_program.__file__).parent
OPENING = {"taskset": "any", "search_folder": "", "arguments": {}}


def serve(folder: Path, source: str) -> dict[str, str]:
    """The answer to the opening, where verifiers consists of `source`."""
    (folder / "verifiers.py").write_text(source, encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-S", str(FOLDER)],
        input=json.dumps(OPENING) + "\n",
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answer: dict[str, str] = json.loads(ran.stdout)
    return answer


def test_no_module_of_the_program_hides_one_of_a_taskset(tmp_path: Path) -> None:
    error = serve(tmp_path, "import sys\nraise RuntimeError(' '.join(map(repr, sys.path)))\n")["error"]
    assert f"RuntimeError: {str(tmp_path)!r}" in error  # the first folder
    assert repr(str(FOLDER)) not in error
    assert repr(str(FOLDER.parent)) not in error


def test_a_print_of_the_taskset_is_no_answer(tmp_path: Path) -> None:
    assert serve(tmp_path, "print('{}')\nraise RuntimeError('planted')\n")["error"] == "RuntimeError: planted"
