"""A stand-in for `sky` 0.14: records its calls and plays a scene. Started as an executable of that name.

STAND_IN_SKY names a folder with `scene.json`: {"version": text, "frames": [[job, ...], ...], "logs": [text, ...],
"before": [job, ...], "fail": {command: [exit code, text]}, "hang": [command, ...]}. Before a launch the queue is
"before". After it each call of `jobs queue` shows the next frame, and the last one for ever; the output has the same
number. Calls are appended to `calls.jsonl`, with the names of the secrets that were in the environment.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main() -> int:
    words = sys.argv[1:]
    folder = Path(os.environ["STAND_IN_SKY"])
    scene: dict[str, Any] = json.loads((folder / "scene.json").read_text(encoding="utf-8"))
    named = [words[index + 1] for index, word in enumerate(words) if word == "--secret"]
    present = [name for name in named if os.environ.get(name)]
    with open(folder / "calls.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"argv": words, "secrets_present": present}) + "\n")
    command = words[1] if words[0] == "jobs" else words[0]
    if command in scene.get("hang", []):
        time.sleep(600)
    if command in scene.get("fail", {}):
        code, text = scene["fail"][command]
        sys.stderr.write(text + "\n")
        return int(code)
    if command == "--version":
        sys.stdout.write(f"skypilot, version {scene.get('version', '0.14.1')}\n")
    elif command == "launch":
        task = Path(words[-3] if words[-1] == "-y" else words[-1])
        (folder / "launched.yaml").write_text(task.read_text(encoding="utf-8"), encoding="utf-8")
    elif command == "queue":
        sys.stdout.write(
            "A hint about a later version of SkyPilot.\n" + json.dumps(next_frame(folder, scene), indent=2)
        )
    elif command == "logs":
        sys.stdout.write(log_of(folder, scene))
    elif command == "cancel":
        (folder / "cancelled").write_text(words[-1], encoding="utf-8")
    return 0


def next_frame(folder: Path, scene: dict[str, Any]) -> Any:
    if not (folder / "launched.yaml").exists():
        return scene.get("before", [])
    counter = folder / "frame"
    index = int(counter.read_text(encoding="utf-8")) if counter.exists() else 0
    counter.write_text(str(index + 1), encoding="utf-8")
    frames = scene["frames"]
    return frames[min(index, len(frames) - 1)]


def log_of(folder: Path, scene: dict[str, Any]) -> str:
    index = int((folder / "frame").read_text(encoding="utf-8")) - 1 if (folder / "frame").exists() else 0
    logs = scene.get("logs", [""])
    return str(logs[min(index, len(logs) - 1)])


if __name__ == "__main__":
    sys.exit(main())
