"""Makes a log: runs its program in a folder of its own, or prints the lines of software that cannot run here."""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from tests.unit.diagnose.made_logs.dress import clock_text, dress
from tests.unit.diagnose.made_logs.loop import progress
from tests.unit.diagnose.made_logs.made_log import HERE, MadeLog

_LONGEST_S = 600
_COPIED = ("loop.py", "server.py")
_HUB = re.compile(r"http://(?:127\.0\.0\.1|localhost):\d+/hub\b")


def produce(log: MadeLog) -> bytes:
    """The bytes of the log, made again."""
    text = _printed(log) if log.how == "prints" else _run(log)
    return dress(text, log.dress, log.name)


def _printed(log: MadeLog) -> str:
    """The lines of `program`; `@steps STYLE COUNT [FIRST [OF]]` stands for progress and `%T{FORMAT}` for a time."""
    draw = random.Random(log.name)
    now = 1_773_459_600.0
    lines: list[str] = []

    def tick(found: re.Match[str]) -> str:
        nonlocal now
        now += draw.uniform(0.05, 4.0)
        return clock_text(found[1], now)

    for line in log.program.removeprefix("\n").removesuffix("\n").split("\n"):
        if line.startswith("@steps "):
            style, *numbers = line.split()[1:]
            count, first, of = (*map(int, numbers), *(1, 0)[len(numbers) - 1 :])
            lines += "\n".join(progress(style, count, first, of)).split("\n")
        else:
            lines.append(re.sub(r"%T\{(\w+)\}", tick, line))
    return "\n".join(lines) + "\n"


def _run(log: MadeLog) -> str:
    """Everything that the program writes to stdout and stderr, with the paths of this machine made neutral."""
    with tempfile.TemporaryDirectory(prefix="made") as folder:
        job = Path(folder, "job")
        job.mkdir()
        for name in _COPIED:
            shutil.copy(HERE / name, job / name)
        script = job / ("train.py" if log.how == "python" else "job.sh")
        script.write_text(log.program.removeprefix("\n"), encoding="utf-8")
        command = ["python", "-u", script.name] if log.how == "python" else ["bash", script.name]
        with open(Path(folder, "log"), "wb") as output:  # one open file, so the order of the two streams is kept
            subprocess.run(
                command,
                cwd=job,
                env=_environment(job),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_LONGEST_S,
                check=False,
                start_new_session=True,
            )
        return _neutral(Path(folder, "log").read_bytes().decode("utf-8", errors="surrogateescape"), job)


def _environment(job: Path) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(job),
        "HF_HOME": str(job / "hf"),
        "TMPDIR": str(job),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def _neutral(text: str, job: Path) -> str:
    """The text without the folders, the name and the addresses of this machine."""
    paths = {str(job): "/job", os.path.realpath(job): "/job"}
    for place in {sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))}:
        paths[place] = "/opt/venv/lib/python3.11/site-packages"
    paths[sysconfig.get_path("stdlib")] = "/usr/lib/python3.11"
    paths[sys.prefix] = "/opt/venv"
    paths[str(HERE.parents[3])] = "/src"
    for path in sorted(paths, key=len, reverse=True):
        text = text.replace(path, paths[path])
    text = _HUB.sub("https://huggingface.co", text)
    return text.replace(socket.gethostname(), "node-17")


def is_runnable(log: MadeLog) -> bool:
    """Whether the modules that the program needs are installed here."""
    check = "import importlib.util, sys; sys.exit(any(not importlib.util.find_spec(name) for name in sys.argv[1:]))"
    return not log.needs or subprocess.run([sys.executable, "-c", check, *log.needs], check=False).returncode == 0
