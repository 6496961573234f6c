"""Reads out of py-spy's dumps where each rank stands, and puts the ranks together that stand at one place. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping

_FRAME = re.compile(r"\s+(?P<function>\S.*?) \((?P<file>.+):(?P<line>\d+)\)\Z")
_PROCESS = re.compile(r"Process (?P<pid>\d+):")
# Where a rank waits is in one of these; whose line made it wait is in none of them.
_LIBRARIES = frozenset(
    {"accelerate", "datasets", "deepspeed", "lightning", "numpy", "torch", "torchdata", "torchtitan", "transformers"}
    | {"triton", "trl", "vllm"}
)


def stands_at(dump: str) -> str:
    """The innermost line of the program itself in the main thread, and what of a library it waits in.

    `_accumulate (prime_train/trainer/step.py:96), in _engine_run_backward`; empty where there is no main thread.
    """
    frames = list(_main_thread(dump))
    if not frames:
        return ""
    own = next((frame for frame in frames if not _is_library(frame["file"])), frames[0])
    place = f"{own['function']} ({own['file']}:{own['line']})"
    return place if own is frames[0] else f"{place}, in {frames[0]['function']}"


def _main_thread(dump: str) -> Iterator[re.Match[str]]:
    """Its frames, innermost first. Its number is the process's own; of a stopped process no thread has a name."""
    header = _PROCESS.match(dump)
    start = f"Thread {header['pid']} " if header else "Thread "
    within = False
    for line in dump.splitlines():
        if line.startswith("Thread "):
            within = line.startswith(start)
        elif within and (frame := _FRAME.match(line)):
            yield frame


def _is_library(file: str) -> bool:
    package = file.removeprefix("/").split("/")[0].removesuffix(".py")
    return file.startswith("<frozen") or package in _LIBRARIES or package in sys.stdlib_module_names


def tell(places: Mapping[str, str]) -> str:
    """One line for each place, first where the fewest ranks stand: who stands apart is whom the others wait for.

    Of as few, first who does not wait in a library, as a rank does that came to the collective.
    """
    together: dict[str, list[str]] = {}
    for who, place in places.items():
        together.setdefault(place, []).append(who)
    ordered = sorted(together.items(), key=lambda group: (len(group[1]), ", in " in group[0]))
    return "".join(f"{', '.join(who)}: {place}\n" for place, who in ordered)
