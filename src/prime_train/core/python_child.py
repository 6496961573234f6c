"""The start of a Python child: no module of the working directory is imported in place of the library's.

`python -m` and `python -c` put the working directory first on the module path. A folder that was downloaded may hold a
json.py, and a command that only looks at the folder would run it.
"""

from __future__ import annotations

import sys

# For an interpreter that the user names, which may be too old for -P. Python before 3.11 ignores it.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}


def own_module(module: str, *arguments: str) -> list[str]:
    """The argv that runs a module in this interpreter."""
    return [sys.executable, "-P", "-m", module, *arguments]


def own_command(*arguments: str) -> list[str]:
    """The argv that runs `prime-train ARGUMENTS` in this interpreter."""
    return [sys.executable, "-P", "-c", "from prime_train.cli.entry import main; main()", *arguments]
