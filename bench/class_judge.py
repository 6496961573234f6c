"""Asks prime-rl's own config classes, in an interpreter that has them."""

from __future__ import annotations

import json
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

from prime_train.config.parsed_config import OTHER_MEMBER, UNKNOWN_KEY, Fault

PROGRAM = Path(__file__).resolve().parents[1] / "src" / "prime_train" / "facts"
LAUNCHER = ("rl.py:635 rl;",)  # sources of validators that are in no class, but in the launcher
ASK_EACH_LINE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import prime_rl_program
answer, sys.stdout = sys.stdout, sys.stderr
def is_refused(values, root):
    return bool(prime_rl_program.ask(root, values)["refusals"])
def read(values):
    return prime_rl_program.find_class(request["root"], {}).model_validate(values)
def is_refused_later(values):
    classes = {root: prime_rl_program.find_class(root, {}) for root in ("trainer", "orchestrator", "inference")}
    parts = [(root, getattr(read(values), root, None)) for root in classes if classes[root]]
    written = [(part.model_dump(mode="json", exclude_none=True), root) for root, part in parts if part is not None]
    return any(is_refused(part, root) for part, root in written)
for line in sys.stdin:
    request = json.loads(line)
    values, without, base = (request.get(name) for name in ("values", "without", "base"))
    said = prime_rl_program.ask(request["root"], values)
    if base is not None:
        said["dropped"] = not is_refused(without, request["root"]) and repr(read(values)) == repr(read(without))
        said["later"] = is_refused_later(values) and not is_refused_later(base)
    print(json.dumps(said, default=str), file=answer, flush=True)
"""


class ClassJudge:
    """prime-rl's own classes of one generation, in an interpreter of their own."""

    def __init__(self, python: str, sources: Path) -> None:
        command = [python, "-c", ASK_EACH_LINE, str(PROGRAM)]
        pipe = subprocess.PIPE
        self._child = subprocess.Popen(command, stdin=pipe, stdout=pipe, env={"PYTHONPATH": str(sources)}, text=True)

    def refusals(self, root: str, values: dict[str, Any]) -> list[str]:
        """Raises RuntimeError if the classes cannot be loaded."""
        answer = self._ask({"root": root, "values": values})
        return [f"{'.'.join(map(str, one['place']))}: {one['message']}" for one in answer["refusals"]]

    def confirms(self, root: str, values: dict[str, Any], base: dict[str, Any], faults: list[Fault]) -> str:
        """Why lint is right about values that the class accepts: "dropped", "later", or "" if it is not.

        A key is dropped if the config is the same without it. Later: the launcher refuses the config, or writes its
        parts, and the class of one refuses what its process reads, but not what it reads of the base.
        """
        without = deepcopy(values)
        can_be_dropped = all(fault.code in (UNKNOWN_KEY, OTHER_MEMBER) for fault in faults)
        for fault in faults if can_be_dropped else ():
            _take_out(without, fault.key)
        said = self._ask({"root": root, "values": values, "without": without, "base": base})
        if said["dropped"] and can_be_dropped:
            return "dropped"
        launched = all(any(source in fault.why for source in LAUNCHER) for fault in faults)
        return "later" if launched or said["later"] else ""

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps(request, default=str) + "\n")
        self._child.stdin.flush()
        answer: dict[str, Any] = json.loads(self._child.stdout.readline() or '{"fault": "its interpreter has ended"}')
        if "fault" in answer:
            raise RuntimeError(answer["fault"])
        return answer

    def close(self) -> None:
        if self._child.stdin is not None:
            self._child.stdin.close()
        self._child.wait()


def _take_out(values: Any, path: tuple[Any, ...]) -> None:
    around = value_at(values, path[:-1])
    if path and (isinstance(around, list) or path[-1] in around):
        del around[path[-1]]


def value_at(values: Any, path: tuple[Any, ...]) -> Any:
    for part in path:
        values = values[part]
    return values
