"""The child process of an environment: time limits, new starts, and nothing left behind."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prime_train.environments import child as children
from prime_train.environments.child import MAX_STARTS, Child, OpeningFailed
from prime_train.environments.environment import EnvironmentFailed

FAKE = Path(__file__).with_name("fake_taskset.py")


def open_fake(opening: dict[str, Any] | None = None, limit_s: float = 60) -> Child:
    return Child([sys.executable, "-S", str(FAKE)], opening or {}, limit_s)


def wait_for_end(pid: int) -> bool:
    """Whether a killed process ended. One whose parent died may stay as a zombie."""
    deadline_s = time.monotonic() + 30
    with suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(0.01)
    return True


@pytest.fixture
def fake() -> Iterator[Child]:
    fake = open_fake()
    fake.open()
    yield fake
    fake.close()


def test_calls_from_many_threads_get_their_own_answers(fake: Child) -> None:
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda value: fake.call({"do": "echo", "value": value}, 60), range(50)))
    assert answers == list(range(50))


def test_an_error_of_the_taskset_keeps_its_traceback(fake: Child) -> None:
    with pytest.raises(EnvironmentFailed, match="KeyError: 'answer'") as error:
        fake.call({"do": "fail"}, 60)
    assert error.value.trace == "Traceback of the taskset"
    assert fake.call({"do": "echo", "value": 1}, 60) == 1


def test_a_child_that_ended_is_started_again(fake: Child) -> None:
    first = fake.call({"do": "pid"}, 60)
    with pytest.raises(EnvironmentFailed, match="exit code 3: the reason of the end"):
        fake.call({"do": "exit"}, 60)
    assert fake.call({"do": "pid"}, 60) != first


def test_a_call_that_the_end_of_the_child_interrupts_is_repeated_once(fake: Child, tmp_path: Path) -> None:
    assert fake.call({"do": "exit_once", "marker": str(tmp_path / "marker")}, 60) is None


def test_a_child_that_always_ends_is_not_started_for_ever(fake: Child) -> None:
    for _ in range(MAX_STARTS):
        with pytest.raises(EnvironmentFailed):
            fake.call({"do": "exit"}, 60)
    with pytest.raises(EnvironmentFailed, match=f"ended {MAX_STARTS} times"):
        fake.call({"do": "echo", "value": 1}, 60)


def test_a_hanging_call_ends_the_child_and_what_it_started(
    fake: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "GRACE_S", 0.1)
    marker = tmp_path / "pid"
    with pytest.raises(EnvironmentFailed, match="no answer within"):
        fake.call({"do": "hang", "marker": str(marker)}, 1.0)
    assert wait_for_end(int(marker.read_text()))
    assert fake.call({"do": "echo", "value": 1}, 60) == 1


def test_output_that_is_no_json_ends_the_child(fake: Child) -> None:
    with pytest.raises(EnvironmentFailed, match="exit code -9"):
        fake.call({"do": "garbage"}, 60)


@pytest.mark.parametrize("number", [[], {}, None, "1", 1.5, -3])
def test_an_answer_to_no_call_is_passed_over(fake: Child, number: object) -> None:
    with pytest.raises(EnvironmentFailed, match="no answer"):
        fake.call({"do": "answer", "answer": {"id": number, "result": 1}}, -children.GRACE_S)
    assert fake.call({"do": "echo", "value": 1}, 60) == 1


@pytest.mark.parametrize("opened", [{}, {"result": None}, {"result": [1]}, {"result": "5 tasks"}])
def test_an_opening_without_a_description_ends_the_child(opened: dict[str, Any]) -> None:
    fake = open_fake({"opened": opened})
    with pytest.raises(OpeningFailed, match="no description"):
        fake.open()


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["result", "error", "trace", "kind", "more"]), _json, max_size=4))
def test_any_answer_is_a_result_or_an_error_of_the_environment(fake: Child, answer: dict[str, Any]) -> None:
    try:
        found = fake.call({"do": "answer", "answer": answer}, 60)
    except EnvironmentFailed:
        assert "error" in answer
    else:
        assert json.dumps(found) == json.dumps(answer.get("result"))


@pytest.mark.parametrize(
    "line",
    ["", "[]", "null", "5", '"text"', "{", "[" * 20_000, '{"id": 1}{', "NaN", "\0", '{"id": 1, "result": 1e999}'],
)
def test_a_line_that_is_no_answer_ends_in_an_error_of_the_environment(fake: Child, line: str) -> None:
    with suppress(EnvironmentFailed):
        fake.call({"do": "write", "line": line}, 60)
    assert fake.call({"do": "echo", "value": 1}, 60) == 1


def test_a_refused_opening_has_its_kind() -> None:
    with pytest.raises(OpeningFailed, match="it needs a container") as error:
        open_fake({"refuse": "container"}).open()
    assert (error.value.kind, error.value.trace) == ("container", "t")


@pytest.mark.parametrize(
    ("opening", "limit_s", "words"),
    [({"end": True}, 60, "exit code 1: the module has no taskset"), ({"slow_s": 600}, 0.2, "not ready after 0.2 s")],
)
def test_a_child_that_does_not_open(opening: dict[str, Any], limit_s: float, words: str) -> None:
    with pytest.raises(OpeningFailed, match=words):
        open_fake(opening, limit_s).open()


def test_an_interpreter_that_does_not_exist() -> None:
    with pytest.raises(OpeningFailed, match="/no/python does not start: No such file") as error:
        Child(["/no/python", str(FAKE)], {}, 60).open()
    assert error.value.kind == "python"


def test_a_closed_child_has_ended(fake: Child) -> None:
    pid = fake.call({"do": "pid"}, 60)
    fake.close()
    assert not psutil.pid_exists(pid)
    with pytest.raises(EnvironmentFailed, match="closed"):
        fake.call({"do": "pid"}, 60)


def test_the_end_of_a_child_that_has_ended_looks_for_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may have given its number to another process by then."""
    lost = children._Process([sys.executable, "-c", "pass"])
    lost.process.wait(60)
    monkeypatch.setattr(psutil, "Process", lambda pid: pytest.fail(f"looked for process {pid}"))
    lost.end()


def test_the_reason_of_an_end_is_read_before_it_is_given() -> None:
    """A call finds the process ended before the thread that reads its stderr has read the reason."""
    is_asked = threading.Event()

    class SlowLog(io.StringIO):
        def write(self, text: str) -> int:
            assert is_asked.wait(60)
            return super().write(text)

    class Ended(children._Process):
        def _describe_end(self) -> str:
            is_asked.set()
            return super()._describe_end()

    code = "import sys; sys.stderr.write('OSError: no more files\\n'); sys.exit(3)"
    ended = Ended([sys.executable, "-S", "-c", code], SlowLog())
    ended.process.wait(60)
    with pytest.raises(children._Lost, match="exit code 3: OSError: no more files"):
        ended.ask(1, {"do": "echo"})
