"""Every Python child is started with a safe module path: no file of the working directory is imported by accident."""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "prime_train"
_STARTS = re.compile(r'"-(?:m|c)",')
# Started with PYTHONSAFEPATH, because the interpreter is the user's own or torchrun's children need it too.
BY_VARIABLE = {
    "facts/trials.py": 2,
    "programs/bundled.py": 2,
    "programs/prime_rl/launcher.py": 1,  # a command that is shown, and not run
    "programs/vllm/program.py": 1,
    "core/python_child.py": 2,
}


def test_every_other_child_is_started_by_the_one_module_for_it() -> None:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        count = len(_STARTS.findall(path.read_text(encoding="utf-8")))
        if count:
            found[str(path.relative_to(SOURCE))] = count
    assert found == BY_VARIABLE
