"""A script of one's own with one process: a state file, an early end with exit code 0 after SIGTERM.

plain.py STEPS
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

asked: list[int] = []


def main() -> None:
    steps, state = int(sys.argv[1]), Path("state.json")
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    first = json.loads(state.read_text(encoding="utf-8"))["step"] if state.exists() else 0
    Path("plain.pid").write_text(str(os.getpid()), encoding="utf-8")
    for step in range(first + 1, steps + 1):
        print(f"it {step} of {steps}: loss {1 / step:.3f}", end="\r")  # noqa: T201
        time.sleep(0.1)
        state.write_text(json.dumps({"step": step}), encoding="utf-8")
        if asked:
            break


if __name__ == "__main__":
    main()
