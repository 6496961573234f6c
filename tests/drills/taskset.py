"""Stands in for an interpreter with verifiers: serves a taskset whose argument `fault` is what harms the run.

The reward is the share of small letters in the answer, so a random model learns from its first rollouts.

raises: each reward raises. raises_seldom: one of 16 does. hangs: no reward is answered. nan: each is not a number.
nan_once, ends_once: the first one, or the process; `marker` is the file by which a later process knows. zero: 0 each.
text: each reward is a text. long: the prompts do not fit the context. long_seldom: one task of 8. ends: it ends at
each reward.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

_TRACE = "Traceback (most recent call last):\n  File \"harmful.py\", line 7, in reward\nKeyError: 'planted'\n"


def score(call: dict[str, Any], fault: str, marker: Path) -> dict[str, Any]:
    answer = call["messages"][-1]["content"]
    reward = sum(letter.islower() for letter in answer) / max(1, len(answer))
    match fault:
        case "raises":
            return {"error": "KeyError: 'planted'", "trace": _TRACE}
        case "raises_seldom" if call["number"] % 16 == 0:
            return {"error": "KeyError: 'planted'", "trace": _TRACE}
        case "hangs":
            time.sleep(600)
        case "nan":
            return {"result": float("nan")}
        case "nan_once" if not marker.exists():
            marker.touch()
            return {"result": float("nan")}
        case "ends_once" if not marker.exists():
            marker.touch()
            sys.stderr.write("Killed\n")
            os._exit(9)
        case "ends":
            sys.stderr.write("OSError: no more files\n")
            sys.stderr.flush()
            os._exit(3)
        case "zero":
            return {"result": 0.0}
        case "text":
            return {"result": "good"}
    return {"result": reward}


def pose(call: dict[str, Any], fault: str) -> dict[str, Any]:
    is_long = fault == "long" or (fault == "long_seldom" and call["number"] % 8 == 0)
    text = f"say the number {call['number']}" + " 7" * (400 if is_long else 0)
    return {"result": {"messages": [{"role": "user", "content": text}]}}


def main() -> None:
    if not sys.argv[1].endswith("verifiers_program"):
        sys.exit(f"{sys.argv[0]} only serves a taskset")
    arguments = json.loads(sys.stdin.readline())["arguments"]
    fault, marker = str(arguments["fault"]), Path(arguments["marker"])
    _write({"result": {"train": 64, "held_out": 8}})
    for line in sys.stdin:
        call = json.loads(line)
        _write({"id": call["id"], **(pose(call, fault) if call["do"] == "task" else score(call, fault, marker))})


def _write(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
