"""A child that speaks the protocol of verifiers_program and does what each call asks for, without verifiers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any


def act(call: dict[str, Any]) -> dict[str, Any]:
    match call["do"]:
        case "echo":
            return {"result": call["value"]}
        case "pid":
            return {"result": os.getpid()}
        case "fail":
            return {"error": "KeyError: 'answer'", "trace": "Traceback of the taskset"}
        case "exit":
            sys.stderr.write("the reason of the end\n")
            sys.stderr.flush()
            os._exit(3)
        case "exit_once" if not Path(call["marker"]).exists():
            Path(call["marker"]).touch()
            os._exit(3)
        case "hang":
            started = subprocess.Popen(["sleep", "600"])
            Path(call["marker"]).write_text(str(started.pid), encoding="utf-8")
            time.sleep(600)
        case "garbage":
            sys.stdout.write("no JSON\n")
            sys.stdout.flush()
            time.sleep(600)
        case "write":
            sys.stdout.write(f"{call['line']}\n")
            sys.stdout.flush()
        case "answer":
            return call["answer"]  # type: ignore[no-any-return]
        case "task" if "messages" in call:
            return {"result": {"messages": call["messages"]}}
        case "task":
            return {"result": {"messages": [{"role": "user", "content": f"{call['split']} {call['number']}"}]}}
        case "score":
            return {"result": float(call["messages"][-1]["content"])}
    return {"result": None}


def main() -> None:
    opening = json.loads(sys.stdin.readline())
    if "refuse" in opening:
        sys.stdout.write(json.dumps({"error": "it needs a container", "kind": opening["refuse"], "trace": "t"}) + "\n")
        return
    time.sleep(opening.get("slow_s", 0))
    if opening.get("end"):
        sys.exit("the module has no taskset")
    opened = opening.get("opened", {"result": {"train": 5, "held_out": 2}})
    sys.stdout.write(json.dumps(opened) + "\n")
    sys.stdout.flush()
    lock = threading.Lock()

    def answer(call: dict[str, Any]) -> None:
        text = json.dumps({"id": call["id"], **act(call)})
        with lock:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    for line in sys.stdin:
        threading.Thread(target=answer, args=[json.loads(line)], daemon=True).start()


if __name__ == "__main__":
    main()
