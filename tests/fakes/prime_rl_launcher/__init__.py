"""A prime-rl that trains nothing: its launcher and every process that the launcher starts, as real processes.

`install(folder)` writes the programs of an environment that has it; `standin.py` is what they run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

PROGRAMS = ("rl", "sft", "inference", "env-server", "orchestrator", "torchrun")
_STANDIN = Path(__file__).with_name("standin.py")


def install(folder: Path) -> Path:
    """bin/ with the programs in `folder`; the path of its interpreter, as [prime_train] python names it."""
    bin_dir = folder / "bin"
    bin_dir.mkdir(parents=True)
    for program in PROGRAMS:
        script = bin_dir / program
        lines = (
            f"#!{sys.executable} -ES",
            "# from prime_rl.entrypoints import main",
            "import runpy, sys",
            f"sys.argv.insert(1, {program!r})",
            f"runpy.run_path({str(_STANDIN)!r}, run_name='__main__')",
        )
        script.write_text("\n".join(lines) + "\n", encoding="utf-8")
        script.chmod(0o755)
    (bin_dir / "python").symlink_to(sys.executable)
    return bin_dir / "python"


def behaviour(count: Path, **options: object) -> dict[str, str]:
    """The environment that makes it behave so. `fault` is one of those of standin.py; `times`: in how many starts;
    `at_step`: when; `step_s`: how long a step takes. `count` is a file in which starts are counted."""
    return {"PRIME_RL_STANDIN": json.dumps({"count": str(count), **options})}
