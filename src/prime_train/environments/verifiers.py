"""A taskset of verifiers 0.4 as an environment. Its code runs in a child process, with its own interpreter."""

from __future__ import annotations

import re
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from prime_train.core.errors import UserError
from prime_train.core.outside import to_count
from prime_train.environments.child import Child, OpeningFailed
from prime_train.environments.environment import ROLES, SPLITS, EnvironmentFailed, Message, Reply, Split, Task, Tool
from prime_train.spec.rl import TaskSource

VERSION = "0.4.0"
OPEN_LIMIT_S = 300.0  # to import verifiers and load the tasks, which may read a dataset
_PROGRAM = Path(__file__).with_name("verifiers_program")  # a folder that Python runs


@dataclass(frozen=True, slots=True)
class Taskset:
    """Tasks whose tools and rewards are the taskset's own. It computes a reward from a trace of the whole chat."""

    name: str
    limit_s: float
    child: Child
    counts: Mapping[Split, int]  # tasks of each split
    tools: tuple[Tool, ...] = ()

    @property
    def size(self) -> int:
        return self.counts["train"]

    def task(self, split: Split, number: int) -> Task:
        within = number % self.counts[split]
        answer = self.child.call({"do": "task", "split": split, "number": within}, self.limit_s)
        try:
            messages = tuple(_read_message(each) for each in answer["messages"])
        except (TypeError, KeyError) as error:
            raise EnvironmentFailed(f"task {within} of {self.name} has no messages") from error
        if not messages:
            raise EnvironmentFailed(f"task {within} of {self.name} has no messages")
        chat = uuid.uuid4().hex if self.tools else ""  # the child keeps the tools of each chat until it is scored
        return Task(self.name, split, number, messages, self.tools, {"number": within, "chat": chat})

    def demonstrate(self, task: Task) -> None:  # noqa: ARG002 - the protocol's parameters
        """A taskset has prompts and rewards, and no solved tasks."""
        return

    def respond(self, task: Task, messages: Sequence[Message]) -> Reply:
        """The results of the tool calls of the last turn. A turn without calls ends the chat."""
        calls = messages[-1].tool_calls
        if not self.tools or not calls:
            return Reply()
        start_s = time.monotonic()
        results = self._call("respond", task, messages)
        if not isinstance(results, list) or len(results) != len(calls):
            raise EnvironmentFailed(f"{self.name} answered {len(calls)} tool calls with {results!r:.200}")
        answers = tuple(
            Message("tool", str(result), tool_call_id=call.id, name=call.name)
            for call, result in zip(calls, results, strict=True)
        )
        return Reply(answers, done=False, tool_s=time.monotonic() - start_s)

    def score(self, task: Task, messages: Sequence[Message]) -> float:
        reward: float = self._call("score", task, messages)  # the caller checks that it is a finite number
        return reward

    def close(self) -> None:
        self.child.close()

    def _call(self, do: str, task: Task, messages: Sequence[Message]) -> Any:
        chat = [asdict(message) for message in messages]
        return self.child.call({"do": do, "split": task.split, **task.payload, "messages": chat}, self.limit_s)


def open_taskset(source: TaskSource, seed: int, name: str) -> Taskset:  # noqa: ARG001 - tasks do not depend on it
    """Start the child and load the tasks. Raises UserError if they cannot be served here."""
    try:
        return start_taskset(source, name, OPEN_LIMIT_S)
    except OpeningFailed as error:
        sys.stderr.write(error.trace)
        raise _explain(source, error) from error


def start_taskset(source: TaskSource, name: str, limit_s: float, log: TextIO | None = None) -> Taskset:
    """The taskset, whose output goes to `log`. Raises OpeningFailed, and UserError for a path without a taskset."""
    taskset, folder = find_taskset(source)
    opening = {"taskset": taskset, "search_folder": folder, "arguments": dict(source.arguments or {})}
    child = Child([_python(source), str(_PROGRAM)], opening, limit_s, log)
    try:
        counts, tools = _read_description(child.open())
    except OpeningFailed:
        child.close()
        raise
    return Taskset(name, source.limit_s, child, counts, tools)


def _read_description(opened: Mapping[str, Any]) -> tuple[dict[Split, int], tuple[Tool, ...]]:
    """(tasks of each split, tools) of the answer to an opening. Raises OpeningFailed for anything else."""
    counts = {split: count for split in SPLITS if (count := to_count(opened.get(split)))}
    tools = opened.get("tools", [])
    if len(counts) < len(SPLITS):
        raise OpeningFailed(f"it names no number of tasks, but {dict(opened)!r:.200}", "size")
    if not isinstance(tools, list) or not all(map(_is_tool, tools)):
        raise OpeningFailed(f"its tools have no name, description and parameters: {tools!r:.200}", "tools")
    return counts, tuple(Tool(each["name"], each["description"], each["parameters"]) for each in tools)


def _read_message(value: Any) -> Message:
    """A message of a task. Raises TypeError or KeyError for anything else."""
    role, content = value["role"], value["content"]
    if role not in ROLES or not isinstance(content, str):
        raise TypeError(f"no message: {value!r:.200}")
    return Message(role, content)


def _is_tool(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    texts = (value.get("name"), value.get("description"))
    return all(isinstance(text, str) for text in texts) and isinstance(value.get("parameters"), dict)


def _python(source: TaskSource) -> str:
    return source.python or sys.executable


def find_taskset(source: TaskSource) -> tuple[str, str]:
    """The module of the taskset, and the folder to import it from: "" if it is installed. Raises UserError."""
    given = source.id or ""
    path = Path(given).expanduser()
    if not (given.startswith(("/", "./", "../", "~")) or path.exists()):
        return given, ""
    module = path.stem.replace("-", "_").lower()
    layouts = [  # (the file that is imported, the folder to import it from)
        (path / module / "__init__.py", path),  # as vf-init writes it
        (path / "__init__.py", path.parent if path.name == module else None),
        (path / f"{module}.py", path),
        (path if path.is_file() and path.name == f"{module}.py" else None, path.parent),
    ]
    for file, folder in layouts:
        if file is not None and folder is not None and file.is_file():
            return module, str(folder.resolve())
    what = f"{given} has no taskset" if path.exists() else f"{given} does not exist"
    why = f"a taskset is a folder with the package {module}, or a module {module}.py"
    raise UserError(what, f'[[tasks]] id = "{given}"', why, f"create one with: vf-init {path.name}")


_FIXES = {
    "verifiers": "{python} -m pip install verifiers==" + VERSION + "; or tasks.python = an interpreter that has it",
    "package": "install it into {python}",
    "id": "install the taskset into {python}, or set tasks.id to its folder",
    "python": "tasks.python = the path of an interpreter that has verifiers " + VERSION,
    "arguments": "tasks.arguments = the fields of the taskset's config",
    "size": "give the taskset more tasks",
    "reward": "give the task class a method with @vf.reward",
}
_REFUSED = ("tools", "container", "agents", "hooks", "prompt", "images")
_REFUSED_FIX = "use a taskset of prompts and rewards; docs/environments.md has the limits"


def advise(source: TaskSource, error: OpeningFailed) -> str:
    """How to repair a taskset that cannot be opened."""
    if error.kind in _REFUSED:
        return _REFUSED_FIX
    if error.kind in _FIXES:
        return _FIXES[error.kind].format(python=_python(source))
    return f"correct {failed_place(error.trace) or 'what it names'}"


def failed_place(trace: str) -> str:
    """ "my_env.py, line 12": the last line of a traceback that is not of an installed package; "" without one."""
    frames = re.findall(r'^  File "([^"<>]+)", line (\d+)', trace, re.MULTILINE)
    own = [f"{file}, line {line}" for file, line in frames if not _INSTALLED.search(file)]
    return own[-1] if own else ""


_INSTALLED = re.compile(r"/(site|dist)-packages/|/lib/python3[^/]*/|/verifiers_program/")


def _explain(source: TaskSource, error: OpeningFailed) -> UserError:
    refused = error.kind in _REFUSED
    what = f"the taskset {source.id} cannot be opened: {' '.join(str(error).split())[:500]}"
    why = "its tasks and rewards are computed by its own code" if not refused else "it needs what cannot be served"
    return UserError(what, f'[[tasks]] id = "{source.id}", python = {_python(source)}', why, advise(source, error))
