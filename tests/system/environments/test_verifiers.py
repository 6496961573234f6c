"""Tasksets of verifiers: found by id or folder, refused with a reason, and scored by their own code.

Slow tests need an interpreter with verifiers 0.4: PRIME_TRAIN_VERIFIERS_PYTHON.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prime_train.core.errors import UserError
from prime_train.environments import verifiers
from prime_train.environments.child import Child, OpeningFailed
from prime_train.environments.environment import EnvironmentFailed, Message, Split, ToolCall
from prime_train.environments.load import open_environment, usual_name
from prime_train.environments.verifiers import Taskset, find_taskset, start_taskset
from prime_train.spec.rl import TaskSource
from tests.system.environments.test_child import open_fake

PYTHON = os.environ.get("PRIME_TRAIN_VERIFIERS_PYTHON", "")
needs_verifiers = pytest.mark.skipif(
    not PYTHON, reason="PRIME_TRAIN_VERIFIERS_PYTHON is not set: an interpreter with verifiers 0.4.0"
)


COUNTS: dict[Split, int] = {"train": 5, "held_out": 2}


def open_fake_taskset() -> tuple[Taskset, Child]:
    child = open_fake()
    child.open()
    return Taskset("fake", 60.0, child, COUNTS), child


def test_tasks_and_rewards_come_from_the_child() -> None:
    taskset, child = open_fake_taskset()
    task = taskset.task("train", 7)
    assert taskset.size == 5
    assert task.messages == (Message("user", "train 2"),)  # tasks begin again after the last one
    assert taskset.task("held_out", 1).messages == (Message("user", "held_out 1"),)
    assert taskset.respond(task, task.messages).done
    assert taskset.score(task, [*task.messages, Message("assistant", "0.25")]) == 0.25
    assert math.isnan(taskset.score(task, [Message("assistant", "nan")]))
    taskset.close()
    with pytest.raises(EnvironmentFailed):
        child.call({"do": "pid"}, 60)


@pytest.mark.parametrize(
    "messages",
    [[], [1], [{}], [{"role": "robot", "content": "a"}], [{"role": "user", "content": 1}], {}, "text", 5, None],
)
def test_a_task_without_messages_is_an_error_of_the_environment(
    messages: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    taskset, child = open_fake_taskset()
    monkeypatch.setattr(child, "call", lambda _call, _limit_s: {"messages": messages})
    with pytest.raises(EnvironmentFailed, match="has no messages"):
        taskset.task("train", 0)
    taskset.close()


TOOL = {"name": "add", "description": "adds", "parameters": {}}


@pytest.mark.parametrize(
    ("described", "words"),
    [
        ({"train": 5}, "no number of tasks"),
        ({"train": 0, "held_out": 2}, "no number of tasks"),
        ({"train": "5 tasks", "held_out": 2}, "no number of tasks"),
        ({"train": [5], "held_out": 2}, "no number of tasks"),
        ({"train": 5, "held_out": 2, "tools": 3}, "no name, description and parameters"),
        ({"train": 5, "held_out": 2, "tools": [[]]}, "no name, description and parameters"),
        ({"train": 5, "held_out": 2, "tools": [TOOL, {"name": "add"}]}, "no name, description and parameters"),
        ({"train": 5, "held_out": 2, "tools": [{**TOOL, "parameters": "none"}]}, "no name, description and parameters"),
    ],
)
def test_a_description_of_another_form_is_refused(
    described: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "my_env.py").touch()
    monkeypatch.setattr(Child, "open", lambda _child: described)
    with pytest.raises(OpeningFailed, match=words):
        start_taskset(TaskSource(kind="verifiers", id=str(tmp_path / "my_env.py")), "mine", 60.0)


@pytest.mark.parametrize(
    ("file", "given", "found"),
    [
        ("my-env/my_env/__init__.py", "my-env", "my-env"),
        ("my_env/__init__.py", "my_env", "."),
        ("my_env/my_env.py", "my_env", "my_env"),
        ("my_env.py", "my_env.py", "."),
    ],
)
def test_a_taskset_is_found_in_its_folder(tmp_path: Path, file: str, given: str, found: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    source = TaskSource(kind="verifiers", id=str(tmp_path / given))
    assert find_taskset(source) == ("my_env", str((tmp_path / found).resolve()))
    assert usual_name(source) == given


def test_an_id_that_is_no_folder_is_an_installed_module() -> None:
    assert find_taskset(TaskSource(kind="verifiers", id="primeintellect/gsm8k-v1")) == ("primeintellect/gsm8k-v1", "")


def test_a_folder_without_a_taskset(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no taskset"):
        find_taskset(TaskSource(kind="verifiers", id=str(tmp_path)))
    with pytest.raises(UserError, match="does not exist"):
        find_taskset(TaskSource(kind="verifiers", id=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("python", "words"),
    [("/no/python", "does not start"), (sys.executable, "pip install verifiers==0.4.0"), ("/bin/true", "exit code 0")],
)
def test_an_interpreter_without_verifiers_is_explained(python: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        open_environment(TaskSource(kind="verifiers", id="anything", python=python), 1)
    assert words in str(error.value)
    assert python in error.value.where


TASKSET = '''
"""A taskset for tests: the answer is the number of the task."""
import asyncio
import time

import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str = ""


class TestTask(vf.Task[Data]):
    async def setup(self, trace, runtime):
        await runtime.write("answer.txt", self.data.answer.encode())

    @vf.reward(weight=2.0)
    async def exact(self, trace: vf.Trace, runtime) -> float:
        text = trace.last_reply
        if text == "raise":
            raise KeyError("planted")
        if text == "nan":
            return float("nan")
        if text == "wait":
            await asyncio.sleep(600)
        if text == "block":
            time.sleep(600)
        if text == "prompt":
            return float([message.role for message in trace.messages] == ["system", "user", "assistant"])
        print("a print of the taskset")
        ran = await runtime.run(["cat", "answer.txt"], {})
        return float(text == ran.stdout)

    @vf.reward
    async def short(self, trace: vf.Trace) -> float:
        return 0.5 * (len(trace.last_reply) < 3)


class Config(vf.TasksetConfig):
    num_tasks: int = 16
    image: str | None = None


class TestTaskset(vf.Taskset[TestTask, Config]):
    def load(self):
        return [
            TestTask(
                Data(prompt=f"number {n}", system_prompt="be short", answer=str(n), image=self.config.image),
                self.config.task,
            )
            for n in range(self.config.num_tasks)
        ]


__all__ = ["TestTaskset"]
'''


def write_source(folder: Path, text: str = TASKSET, **arguments: str | int) -> TaskSource:
    (folder / "my_env").mkdir(exist_ok=True)
    (folder / "my_env" / "__init__.py").write_text(text, encoding="utf-8")
    return TaskSource(kind="verifiers", id=str(folder / "my_env"), python=PYTHON, arguments=arguments, limit_s=20.0)


@pytest.fixture(scope="module")
def taskset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Taskset]:
    opened = open_environment(write_source(tmp_path_factory.mktemp("taskset")), 1)
    assert isinstance(opened, Taskset)
    yield opened
    opened.close()


def score(taskset: Taskset, answer: str) -> float:
    task = taskset.task("train", 0)
    number = task.messages[-1].content.removeprefix("number ")
    text = number if answer == "right" else answer
    return taskset.score(task, [*task.messages, Message("assistant", text)])


@needs_verifiers
def test_the_splits_of_a_taskset_are_disjoint(taskset: Taskset) -> None:
    train = {taskset.task("train", number).messages for number in range(30)}
    held_out = {taskset.task("held_out", number).messages for number in range(30)}
    assert (taskset.size, len(train), len(held_out)) == (14, 14, 2)
    assert not train & held_out


@needs_verifiers
def test_a_taskset_computes_its_own_rewards(taskset: Taskset) -> None:
    assert taskset.task("train", 0).messages[0] == Message("system", "be short")
    assert score(taskset, "right") == 2.5
    assert score(taskset, "99999") == 0.0
    assert score(taskset, "?") == 0.5
    assert score(taskset, "prompt") == 2.0
    assert math.isnan(score(taskset, "nan"))


@needs_verifiers
def test_a_reward_that_raises_is_reported_with_its_traceback(taskset: Taskset) -> None:
    with pytest.raises(EnvironmentFailed, match="planted") as error:
        score(taskset, "raise")
    assert 'raise KeyError("planted")' in error.value.trace


@needs_verifiers
def test_a_reward_that_hangs_ends_by_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prime_train.environments.child.GRACE_S", 1.0)
    opened = open_environment(write_source(tmp_path), 1)
    assert isinstance(opened, Taskset)
    limited = Taskset(opened.name, 1.0, opened.child, opened.counts)
    try:
        for answer in ("wait", "block"):  # the child ends the first by itself; the second blocks the child
            with pytest.raises(EnvironmentFailed, match="no answer within"):
                score(limited, answer)
            assert score(opened, "right") == 2.5
    finally:
        opened.close()


NO_REWARD = TASKSET.replace("@vf.reward(weight=2.0)", "").replace("@vf.reward", "")
TOOLSET = '''

class Counter(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "counter"

    async def setup_task(self, task) -> None:
        self.total = int(task.answer)

    @vf.tool
    async def add(self, number: int) -> str:
        """Adds to the number of the task."""
        if number < 0:
            raise ValueError("only up")
        self.total += number
        return str(self.total)

'''
TOOLS = (
    TASKSET.replace("class TestTask(", TOOLSET + "class TestTask(")
    .replace(
        "    async def setup",
        "    @classmethod\n    def toolsets(cls, config):\n        return [Counter(vf.ToolsetConfig())]\n\n"
        "    async def setup",
    )
    .replace(
        'if text == "prompt":',
        'if text == "turns":\n            first = int(self.data.answer)\n            return float('
        "[m.content for m in trace.tool_messages] == [str(first + 3), str(first + 10)])\n"
        '        if text == "prompt":',
    )
)
STATE = TOOLS.replace("vf.Toolset[vf.ToolsetConfig]", "vf.Toolset[vf.ToolsetConfig, Shared]").replace(
    "class Counter", "class Shared(vf.State):\n    x: int = 0\n\n\nclass Counter"
)


@needs_verifiers
def test_a_taskset_answers_tool_calls_of_several_turns(tmp_path: Path) -> None:
    opened = open_environment(write_source(tmp_path, TOOLS), 1)
    try:
        task, other = opened.task("train", 0), opened.task("train", 1)
        first, second = (int(each.messages[-1].content.removeprefix("number ")) for each in (task, other))
        (tool,) = task.tools
        assert (tool.name, tool.description) == ("counter_add", "Adds to the number of the task.")
        assert tool.parameters["properties"]["number"]["type"] == "integer"

        def ask(name: str, arguments: str) -> Message:
            return Message("assistant", "", tool_calls=(ToolCall(name, arguments, "call00001"),))

        chat = [*task.messages, ask("counter_add", '{"number": 3}')]
        reply = opened.respond(task, chat)
        assert reply.messages == (Message("tool", str(first + 3), tool_call_id="call00001", name="counter_add"),)
        assert not reply.done
        other_chat = [*other.messages, ask("counter_add", '{"number": 3}')]
        assert opened.respond(other, other_chat).messages[0].content == str(
            second + 3
        )  # each chat has tools of its own
        chat += [*reply.messages, ask("counter_add", '{"number": 7}')]
        chat += opened.respond(task, chat).messages
        assert chat[-1].content == str(first + 10)
        assert opened.respond(task, [*chat, Message("assistant", "turns")]).done
        assert opened.score(task, [*chat, Message("assistant", "turns")]) == 2.0
        for name, arguments, words in [
            ("add", "{}", "unknown tool"),
            ("counter_add", "{", "invalid JSON"),
            ("counter_add", "[]", "must be a JSON object"),
            ("counter_add", '{"number": -1}', "only up"),
            ("counter_add", '{"number": "many"}', "number"),
        ]:
            assert words in opened.respond(other, [*other_chat, ask(name, arguments)]).messages[0].content
        ended = opened.task("train", 0)
        with pytest.raises(EnvironmentFailed, match="the tools of this chat ended"):
            opened.score(ended, [*chat, Message("assistant", "turns")])
    finally:
        opened.close()


REFUSED = [
    (TASKSET, {"image": "ubuntu"}, "container", "need a container"),
    (TASKSET, {"num_tasks": 1}, "size", "at least 2 are needed"),
    (TASKSET, {"num_tasks": "many"}, "arguments", "num_tasks"),
    (TASKSET, {"colour": 1}, "arguments", "colour"),
    (STATE, {}, "tools", "shares a State"),
    (NO_REWARD, {}, "reward", "no @vf.reward"),
    ("raise RuntimeError('planted')", {}, "", "planted"),
    ("import missing_module", {}, "package", "it imports missing_module"),
    ("", {}, "", "__all__"),
]

# Opens each taskset in one interpreter, because the import of verifiers takes seconds.
OPEN_ALL = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
from verifiers_program.refusals import describe_error, describe_missing
from verifiers_program.server import Server
del sys.path[0]
for name, folder, arguments in json.load(sys.stdin):
    try:
        asyncio.run(Server(name, folder, arguments).open())
    except ModuleNotFoundError as error:
        found = describe_error(describe_missing(error, name))
    except Exception as error:
        found = describe_error(error)
    else:
        found = {}
    print(json.dumps(found))
"""


@needs_verifiers
def test_a_taskset_that_cannot_be_served_is_refused(tmp_path: Path) -> None:
    asked = []
    for number, (text, arguments, _, _) in enumerate(REFUSED):
        (tmp_path / f"env_{number}.py").write_text(text, encoding="utf-8")
        asked.append((f"env_{number}", str(tmp_path), arguments))
    command = [PYTHON, "-c", OPEN_ALL, str(verifiers._PROGRAM.parent)]
    ran = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, timeout=200, check=True)
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [each["kind"] for each in found] == [kind for _, _, kind, _ in REFUSED]
    for each, (_, _, _, words) in zip(found, REFUSED, strict=True):
        assert words in each["error"]


@needs_verifiers
def test_an_unknown_id_is_refused() -> None:
    with pytest.raises(UserError, match="there is no taskset 'no-such-taskset'") as error:
        open_environment(TaskSource(kind="verifiers", id="no-such-taskset", python=PYTHON), 1)
    assert "install the taskset" in error.value.fix


@pytest.mark.parametrize(("kind", "words"), [("container", "docs/environments.md"), ("size", "more tasks")])
def test_a_refusal_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, words: str) -> None:
    def refuse(*_: object) -> Child:
        return open_fake({"refuse": kind})

    monkeypatch.setattr(verifiers, "Child", refuse)
    with pytest.raises(UserError, match="it needs a container") as error:
        open_environment(write_source(tmp_path), 1)
    assert words in error.value.fix
