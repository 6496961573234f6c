"""`python -m tests.fuzz.answers`: what children and servers answer, with values that nobody expects.

The child of an environment, a taskset, the samples of watches, an interpreter that a config names, the notice of a
cloud and the rows of prime-rl: each answer is a value, or an error that names the one who answered.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import random
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from prime_train.environments import child as children
from prime_train.environments.child import Child, OpeningFailed
from prime_train.environments.environment import EnvironmentFailed, Message, Tool, ToolCall
from prime_train.environments.verifiers import Taskset, _read_description
from prime_train.facts.probe_process import read_answer
from prime_train.programs.prime_rl.lines import parse_row
from prime_train.supervise.watches.disk.sample import DiskSample
from prime_train.supervise.watches.gpu.samples import GpuReading
from prime_train.supervise.watches.preemption import judge as preemption
from prime_train.supervise.watches.sample_lines import load
from tests.fuzz import series
from tests.fuzz.values import TEXTS, change, garble, value

FAKE = Path(__file__).parents[1] / "system" / "environments" / "fake_taskset.py"
_COUNTS = {"train": 5, "held_out": 2}


@functools.cache
def _child() -> Child:
    made = Child([sys.executable, "-S", str(FAKE)], {}, 60.0)
    made.open()
    return made


def play_line(chance: random.Random) -> list[str]:
    """A line of the child beside its answer. It may end the child, and the next call has a child again."""
    line = change({"id": chance.choice((1, [], "1")), "result": 1, "error": "x"}, chance)
    if chance.random() < 0.3:
        line = garble(line.encode("utf-8", "surrogatepass"), chance).decode("utf-8", "replace")
    with contextlib.suppress(EnvironmentFailed):
        _child().call({"do": "write", "line": line.replace("\n", " ")}, 30.0)
    found = _child().call({"do": "echo", "value": 1}, 30.0)
    return [] if found == 1 else [f"the child answers {found!r}"]


class _Answers:
    """Stands for the child of a taskset, and answers each call with one value."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def call(self, _call: Mapping[str, Any], _limit_s: float) -> object:
        return self._answer


def play_taskset(chance: random.Random) -> list[str]:
    answer: Any = value(chance)
    if chance.random() < 0.6:
        answer = {"messages": [{"role": value(chance), "content": value(chance)} for _ in range(chance.randrange(3))]}
    taskset = Taskset("x", 1.0, _Answers(answer), _COUNTS, (Tool("t", "", {}),))  # type: ignore[arg-type]
    with contextlib.suppress(EnvironmentFailed):
        task = taskset.task("train", 7)
        assert all(isinstance(message.content, str) for message in task.messages)
    with contextlib.suppress(EnvironmentFailed):
        asked = Message("assistant", "", (ToolCall("t", "{}", "1"),))
        empty = Taskset("x", 1.0, _Answers({"messages": [{"role": "user", "content": ""}]}), _COUNTS)  # type: ignore[arg-type]
        taskset.respond(empty.task("train", 0), [asked])
    with contextlib.suppress(OpeningFailed):
        opened = {"train": value(chance), "held_out": 2, "tools": value(chance)}
        _read_description(answer if isinstance(answer, dict) else opened)
    return []


def play_sample(chance: random.Random) -> list[str]:
    kind: type[Any] = chance.choice((DiskSample, GpuReading))
    text = change({field.name: value(chance) for field in dataclasses.fields(kind)}, chance)
    with contextlib.suppress(ValueError, RecursionError):  # the sampler drops a line that is no JSON
        raw = json.loads(text)
        with contextlib.suppress(ValueError):
            load(kind, raw)
    return []


def play_interpreter(chance: random.Random) -> list[str]:
    """A program in the place of the interpreter that a config names."""
    with tempfile.TemporaryDirectory(prefix="answers-") as folder:
        said = Path(folder, "said")
        said.write_bytes(garble(change({"a": 1, "b": "x"}, chance).encode("utf-8", "surrogatepass"), chance))
        read_answer("it", ["sh", "-c", f"cat {shlex.quote(str(said))}; exit {chance.choice((0, 0, 1))}"], 20.0)
    return []


def play_notice(chance: random.Random) -> list[str]:
    documents: tuple[dict[str, Any], ...] = (
        {"action": "terminate", "time": "2026-01-01T00:00:00Z"},
        {"noticeTime": "2026-01-01T00:00:00Z"},
        {"Events": [value(chance)], "DocumentIncarnation": 1},
        {"Events": [{"EventType": "Preempt", "NotBefore": value(chance), "Resources": value(chance)}]},
    )
    body = chance.choice((change(chance.choice(documents), chance), chance.choice(TEXTS)))
    status = chance.choice((200, 404))
    preemption.read_aws_action(status, body, 1.0)
    preemption.read_aws_rebalance(status, body)
    preemption.read_gcp_preempted(status, body)
    preemption.read_azure_events(status, body, 1.0, chance.choice(("", "machine")))
    return []


def play_row(chance: random.Random) -> list[str]:
    keys = ("step", "loss/mean", "perf/throughput", "progress/total_tokens", "time/save_ckpt")
    parse_row(change(dict.fromkeys(keys, 1), chance))
    return []


KINDS: tuple[Callable[[random.Random], list[str]], ...] = (
    *(play_line, play_taskset, play_sample, play_interpreter, play_notice, play_row),
)


def play(chance: random.Random) -> list[str]:
    children.GRACE_S = 0.5
    return chance.choice(KINDS)(chance)


if __name__ == "__main__":
    code = series.play("tests.fuzz.answers", play, sys.argv[1:])
    if _child.cache_info().currsize:
        _child().close()
    sys.exit(code)
