"""What launchers, collectors and clocks put around the lines of a program. Pure: seeded by the name of the log."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable

from tests.unit.diagnose.made_logs.loop import progress

_START = 1_773_459_600.0


def clock_text(form: str, now: float) -> str:
    """`now` (seconds since 1970) in one of the time formats of real logs."""
    whole, milli = time.gmtime(now), int(now % 1 * 1000)
    match form:
        case "iso":
            return time.strftime("%Y-%m-%dT%H:%M:%S", whole) + f".{milli:03}Z"
        case "actions":
            return time.strftime("%Y-%m-%dT%H:%M:%S", whole) + f".{int(now % 1 * 10**7):07}Z"
        case "cet":
            return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now + 3600)) + f".{milli:03} CET"
        case "ctime":
            return time.strftime("%a %b %e %H:%M:%S %Y", whole)
        case "epoch":
            return f"{now:.3f}"
        case "compact":
            return time.strftime("%Y%m%dT%H%M%SZ", whole)
        case "apache":
            return time.strftime("[%d/%b/%Y:%H:%M:%S +0000]", whole)
        case "syslog":
            return time.strftime("%b %e %H:%M:%S", whole) + " node-17 train[4121]:"
        case "rfc5424":
            return "<14>1 " + time.strftime("%Y-%m-%dT%H:%M:%S", whole) + f".{milli:03}Z node-17 train 4121 - -"
        case "bracket":
            return time.strftime("[%Y-%m-%d %H:%M:%S]", whole)
        case "uptime":
            return f"[{now - _START + 81234:12.6f}]"
    raise ValueError(f"no time format is called {form}")


def _clocked(lines: Iterable[str], form: str, draw: random.Random) -> list[str]:
    now, dressed = _START, []
    for line in lines:
        now += draw.uniform(0.0, 0.05) if line.startswith((" ", "Traceback")) else draw.uniform(0.05, 6.0)
        dressed.append(f"{clock_text(form, now)} {line}")
    return dressed


def _every_rank(lines: list[str], ranks: int, prefix: str, draw: random.Random) -> list[str]:
    """The same lines of `ranks` writers, mixed; the order of each writer is kept."""
    place, mixed = [0] * ranks, []
    while open_ranks := [rank for rank in range(ranks) if place[rank] < len(lines)]:
        rank = draw.choice(open_ranks)
        for _ in range(draw.randrange(1, 5)):
            if place[rank] < len(lines):
                mixed.append(prefix.replace("R", str(rank)) + lines[place[rank]])
                place[rank] += 1
    return mixed


def _beside(lines: list[str], own: str, other: str, style: str, draw: random.Random) -> list[str]:
    """The lines with the prefix `own`, between the progress of another writer with the prefix `other`."""
    steps = progress(style, len(lines))
    mixed = []
    for line in lines:
        if draw.random() < 0.4:
            mixed.append(other + next(steps))
        mixed.append(own + line)
    return mixed


def _one(lines: list[str], directive: str, draw: random.Random) -> list[str]:
    name, _, argument = directive.partition(":")
    match name:
        case "clock":
            return _clocked(lines, argument, draw)
        case "prefix":
            return [argument + line for line in lines]
        case "pod":
            return [f"[pod/{argument}/pytorch] {line}" for line in lines]
        case "stern":
            return [f"{argument} pytorch {line}" for line in lines]
        case "compose":
            return [f"{argument}  | {line}" for line in lines]
        case "mpi":
            return _every_rank(lines, int(argument), "[1,R]<stderr>:", draw)
        case "sagemaker":
            return _every_rank(lines, int(argument), "[1,mpirank:R,algo-1]<stderr>:", draw)
        case "srun":
            return _every_rank(lines, int(argument), "R: ", draw)
        case "torchrun":
            return _every_rank(lines, int(argument), "[defaultR]:", draw)
        case "pods":
            return _beside(lines, "[pod/trainer-0/pytorch] ", "[pod/trainer-1/pytorch] ", argument, draw)
        case "composes":
            return _beside(lines, "trainer-1    | ", "inference-1  | ", argument, draw)
        case "ray":
            return [f"(TaskRunner pid={argument}) {line}" for line in lines]
        case "kaggle":
            now, dressed = 3.0, []
            for number, line in enumerate(lines, 1):
                now += draw.uniform(0.0, 2.0)
                dressed.append(f"{now:.1f}s\t{number}\t{line}")
            return dressed
        case "docker_json":
            now, dressed = _START, []
            for line in lines:
                now += draw.uniform(0.0, 2.0)
                dressed.append(json.dumps({"log": line + "\n", "stream": "stderr", "time": clock_text("actions", now)}))
            return dressed
        case "actions":
            return ["train\tRun training\t" + line for line in _clocked(lines, "actions", draw)]
        case "cut_top":
            return lines[int(argument) :]
        case "cut_end":
            return lines[: -int(argument)]
        case "indent":
            return ["    " + line for line in lines]
        case "red":
            return [f"\x1b[31m{line}\x1b[0m" if "Error" in line else line for line in lines]
        case "echo":  # the log of a shell with `set -x` shows its commands
            return [f"+ {argument}", *lines]
    raise ValueError(f"nothing is called {directive}")


def dress(text: str, directives: Iterable[str], seed: str) -> bytes:
    """The bytes of the log: `text` with each directive applied in order."""
    draw = random.Random(seed)
    lines, encoding, end = text.split("\n"), "utf-8", "\n"
    if lines and not lines[-1]:
        lines.pop()
    for directive in directives:
        if directive == "utf16":
            encoding = "utf-16"
        elif directive == "crlf":
            end = "\r\n"
        else:
            lines = _one(lines, directive, draw)
    return (end.join(lines) + end).encode(encoding, errors="surrogateescape" if encoding == "utf-8" else "replace")
