"""The page in a real Chromium: what it shows while runs go on, and that no text of a run becomes code."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from prime_train.bus.fleet_traces import TRACE_BYTES
from prime_train.checkpoints.layout import PIN
from prime_train.core.plans import ChangePlan, write_plan
from prime_train.core.rundir import RunDir
from prime_train.events import (
    AttemptEnded,
    CommandAccepted,
    GpuLeftOut,
    GpuTested,
    LaunchAsked,
    Progress,
    StopAsked,
    TrainerStarted,
)
from prime_train.supervise.core.state import STOP_COMMAND
from prime_train.supervise.processes.lock import hold_run
from prime_train.supervise.processes.requests import Request
from prime_train.supervise.watches.gpu.health import write_gpu_health
from tests.system.control.served import ANSWER_S, CONFIG, serve
from tests.system.control.test_server import answer_requests
from tests.unit.cli.commands import wait_until
from tests.unit.views.written_runs import (
    DEATH,
    FIRST_ATTEMPT,
    GONE,
    TRACE,
    WHOLE_LIFE,
    Timeline,
    records,
    write_checkpoint,
    write_config,
    write_events,
    write_metrics,
    write_run,
    write_trace,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest.importorskip("sse_starlette", reason="the extra `control` is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
if BROWSER is None:
    pytest.skip("there is no Chromium: apt-get install chromium", allow_module_level=True)

HOSTILE = "<img src=x onerror=window.broken=1>"
ANSWER_MS = 1000 * ANSWER_S
# Of plotly: a style element that the policy of the page refuses, and that nothing here needs.
_KNOWN = "Applying inline style violates"
RESTART: Timeline = (
    (13.0, "supervisor", LaunchAsked(2, 50)),
    (15.0, "trainer-002-rank0", TrainerStarted(2, 1, 0, 1, "cpu", "fp32", 1, 1, 50)),
    (16.0, "trainer-002-rank0", Progress(2, 61, 5.25, 4000.0, 122_880)),
)


@pytest.fixture
def page() -> Iterator[Page]:
    """An empty page. Fails if the page reports an error, or runs code that a run has written."""
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync"]
    faults: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=flags)
        found = browser.new_page(viewport={"width": 1300, "height": 900})
        found.set_default_timeout(ANSWER_MS)
        found.on("pageerror", lambda error: faults.append(str(error)))
        found.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
        yield found
        assert found.evaluate("window.broken") is None
        browser.close()
    lost = "ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE"
    assert [fault for fault in faults if _KNOWN not in fault and not any(word in fault for word in lost)] == []


def add_steps(run_dir: RunDir, first: int, last: int) -> None:
    with open(run_dir.metrics, "a", encoding="utf-8") as file:
        file.writelines(f"{json.dumps({'step': step, 'loss': 5 - step / 100})}\n" for step in range(first, last + 1))


POINTS = "(document.querySelector('[data-plot=loss]')?.data?.[0]?.x ?? []).length"


def wait(page: Page, expression: str) -> None:
    """Until the expression holds. The page's policy forbids it to evaluate a text, so the driver does."""
    wait_until(lambda: bool(page.evaluate(expression)))


def test_the_page_follows_a_run_a_failure_and_a_controller_that_restarts(tmp_path: Path, page: Page) -> None:
    run_dir = write_run(tmp_path / "runs" / "small", FIRST_ATTEMPT)
    add_steps(run_dir, 1, 60)
    with hold_run(run_dir):
        with serve(tmp_path) as served:
            port = served.port
            page.goto(served.url)
            assert served.token not in page.url
            page.click("tr[data-run=small]")
            page.wait_for_selector("[data-device='small/0']")
            assert "0 · small" in page.inner_text("#devices")
            wait(page, f"{POINTS} === 60")
            add_steps(run_dir, 61, 80)
            write_events(
                run_dir, records((*FIRST_ATTEMPT, (11.0, "trainer-001-rank0", Progress(1, 80, 5.0, 1.0, 1))))[-1:]
            )
            wait(page, f"{POINTS} === 80")
            assert page.inner_text("#failures-note") == "none"
            write_events(run_dir, records((*FIRST_ATTEMPT, *DEATH))[-1:])
            page.click("tr[data-failure='small/1']")
            assert "killed by signal 9" in page.inner_text("#dialog-body")
            page.click("#dialog-no")
        wait(page, "document.getElementById('connection').textContent.includes('lost')")
        write_events(run_dir, records((*FIRST_ATTEMPT, *DEATH, *RESTART))[-len(RESTART) :])
        with serve(tmp_path, port):
            wait(page, "document.getElementById('connection').textContent === 'live'")
            wait(page, "document.getElementById('run-step').textContent.startsWith('step 61 of 100')")
            wait(page, "document.querySelector('[data-failure]').lastChild.textContent === '4.0 s'")


@contextlib.contextmanager
def supervising(run_dir: RunDir) -> Iterator[list[Request]]:
    """The requests that a supervisor has taken, which accepts each."""
    run_dir.requests(1).mkdir(parents=True, exist_ok=True)
    taken: list[Request] = []
    is_over = threading.Event()
    supervisor = threading.Thread(target=answer_requests, args=(run_dir, taken, is_over))
    with hold_run(run_dir):
        supervisor.start()
        try:
            yield taken
        finally:
            is_over.set()
            supervisor.join()


def test_a_change_in_the_editor_reaches_the_supervisor_and_its_answer_is_shown(tmp_path: Path, page: Page) -> None:
    run_dir = write_run(tmp_path / "runs" / "small", FIRST_ATTEMPT)
    write_config(run_dir, CONFIG)
    values, before = {"optim.clip_norm": 0.5}, {"optim.clip_norm": 1.0}
    plan = ChangePlan(version=1, values=values, before=before, config=before, by=HOSTILE, why=HOSTILE)
    write_plan(run_dir.settings, plan)
    with supervising(run_dir) as taken, serve(tmp_path) as served:
        page.goto(served.url)
        page.fill("input[data-key='optim.lr']", "2e-4")
        assert "optim.lr: 0.001 → 0.0002" in page.inner_text("#preview")
        wait(page, "document.getElementById('preview').textContent.includes('checked as in the config')")
        page.fill("#why", "too fast")
        page.fill("#by", "me")
        page.click("#apply")
        page.wait_for_selector(".notice")
        assert "accepted: taken <img" in page.inner_text("#notices")
        body = {"values": {"optim.lr": 0.0002}, "why": "too fast", "by": "me", "expected": 1}
        assert taken[0].body == body
        page.click("button[data-back='1']")
        assert "optim.clip_norm: 0.5 → 1" in page.inner_text("#preview")
        page.click("button[data-command=pause]")
        page.click("#dialog-yes")
        wait(page, "document.querySelectorAll('.notice').length === 2")
        assert taken[1].body == {"command": "pause", "by": "me"}
        # A check that the end of the controller cuts off is an error of the page.
        wait(page, "!document.getElementById('preview').textContent.includes('is checked ...')")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("optim.lr", "-1", "the schema of the config sets type and bounds"),
        ("run.max_steps", "20", "steps that are done are not undone"),
        ("optim.kind", "muon", "the states of the optimizer in memory are of this kind"),
        ("optim.lrr", "1", "did you mean optim.lr?"),
    ],
)
def test_the_editor_shows_why_a_change_is_refused(
    tmp_path: Path, page: Page, key: str, value: str, reason: str
) -> None:
    run_dir = write_run(tmp_path / "runs" / "small", FIRST_ATTEMPT)
    write_config(run_dir, CONFIG)
    with supervising(run_dir) as taken, serve(tmp_path) as served:
        page.goto(served.url)
        page.wait_for_selector("input[data-key='optim.lr']")
        assert "a number, > 0" in page.inner_text("#keys")
        assert "optim.muon_lr has no effect" in page.inner_text("#keys")
        if page.query_selector(f"input[data-key='{key}']"):
            page.fill(f"input[data-key='{key}']", value)
        else:
            page.fill("#other-key", key)
            page.fill("#other-value", value)
        page.wait_for_selector("#preview .refused")
        assert reason in page.inner_text("#preview .refused")
        assert page.is_disabled("#apply")
        assert taken == []


def test_a_gpu_is_drained_tested_and_returned_from_the_map(tmp_path: Path, page: Page) -> None:
    run_dir = write_run(tmp_path / "runs" / "small", FIRST_ATTEMPT)
    gpu = {"index": 3, "uuid": "GPU-a", "used_bytes": 3, "total_bytes": 4, "uses": [{"pid": GONE}]}
    run_dir.watches.mkdir()
    write_gpu_health(run_dir.path, {"gpus": [gpu]})
    with supervising(run_dir) as taken, serve(tmp_path) as served:

        def press(command: str) -> None:
            page.click("[data-device='GPU-a']")
            page.click(f"button[data-command={command}][data-of=small]")
            page.click("#dialog-yes")
            page.wait_for_selector(".notice")
            answered.append({"command": command, "gpus": ["GPU-a"], "by": "the page"})
            wait_until(lambda: [one.body for one in taken] == answered)

        answered: list[dict[str, object]] = []
        page.goto(served.url)
        page.wait_for_selector("[data-device='GPU-a'].ok")
        press("drain")
        write_events(run_dir, records((*FIRST_ATTEMPT, (10.5, "supervisor", GpuLeftOut("GPU-a", "drained"))))[-1:])
        page.wait_for_selector("[data-device='GPU-a'].broken")
        press("test")
        press("return")


def write_two_machines(path: Path) -> RunDir:
    """A run with a rank on each of two machines."""
    run_dir = write_run(path, (*FIRST_ATTEMPT[:3], *TWO_RANKS, *FIRST_ATTEMPT[4:]))
    write_config(run_dir, CONFIG + "[parallel]\nprocesses = 2\nmachines = 2\n")
    return run_dir


TWO_RANKS: Timeline = (
    (2.0, "trainer-001-rank0", TrainerStarted(1, GONE, 0, 2, "cpu", "fp32", 1, 1, 0)),
    (2.0, "machines-001", TrainerStarted(1, GONE, 1, 2, "cpu", "fp32", 1, 1, 0)),
)


def test_a_machine_of_a_run_is_drained_tested_and_returned_from_the_map(tmp_path: Path, page: Page) -> None:
    run_dir = write_two_machines(tmp_path / "runs" / "small")
    test = GpuTested("c", "machine-1", False, HOSTILE, 1.0)
    with supervising(run_dir) as taken, serve(tmp_path) as served:

        def button(command: str, number: int = 1) -> str:
            return f"button[data-command={command}][data-of=small][data-member=machine-{number}]"

        def press(command: str) -> None:
            page.click(button(command))
            assert page.inner_text("#dialog-title") == "small/machine-1"
            page.click("#dialog-yes")
            answered.append({"command": command, "gpus": ["machine-1"], "by": "the page"})
            wait_until(lambda: [one.body for one in taken] == answered)
            page.wait_for_selector(".notice:has-text('accepted: taken')")

        answered: list[dict[str, object]] = []
        page.goto(served.url)
        page.wait_for_selector("[data-device='small/1']")
        for command in ("drain", "test", "return"):
            assert page.is_disabled(button(command, 0))
        assert "machine 0 has the supervisor" in page.inner_text("#devices")
        assert (page.is_disabled(button("test")), page.is_disabled(button("return"))) == (True, True)
        assert "Drain tests the machine too; Return: it is not drained" in page.inner_text("#devices")
        press("drain")
        events = (CommandAccepted("c", "drain", "me", gpus=("machine-1",)), GpuLeftOut("machine-1", "drained"))
        ended = AttemptEnded(1, 0, "stopped", "", "", "", "", "", 60)
        more = [(11.0, "supervisor", event) for event in (*events, ended, test)]
        write_events(run_dir, records((*FIRST_ATTEMPT[:3], *more))[-4:])
        wait(page, f"document.getElementById('devices').textContent.includes({json.dumps(f'FAILED: {HOSTILE}')})")
        assert page.query_selector("[data-device]") is None, "its ranks have left the map"
        assert page.is_disabled(button("drain"))
        press("test")
        press("return")
        assert page.evaluate("document.querySelectorAll('img').length") == 0


def test_a_viewer_sees_the_machines_of_a_run_and_drains_none(tmp_path: Path, page: Page) -> None:
    run_dir = write_two_machines(tmp_path / "runs" / "small")
    body = {"command": "drain", "gpus": ["machine-1"]}
    request = json.dumps({"run": "small", "kind": "command_requested", "body": body})
    with supervising(run_dir) as taken, serve(tmp_path) as served:
        page.goto(served.viewer_url)
        page.wait_for_selector("[data-device='small/1']")
        assert page.locator("button[data-member]:visible").count() == 0
        json_headers = {"Content-Type": "application/json"}
        for headers in (served.viewer, served.owner | {"Origin": "https://evil.example"}, {}):
            answer = served.ask("POST", "/api/request", headers | json_headers, request)
            assert answer.status in (401, 403), headers
        assert taken == []


def test_a_checkpoint_is_pinned_by_a_button(tmp_path: Path, page: Page) -> None:
    run_dir = write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    folder = write_checkpoint(run_dir, 50)
    with serve(tmp_path) as served:
        page.goto(served.url)
        page.click("tr[data-run=small]")
        for text, is_pinned in (("Pin", True), ("Unpin", False)):
            page.click(f"button[data-pin='50']:text-is('{text}')")
            page.click("#dialog-yes")
            wait(
                page,
                f"document.getElementById('checkpoints').textContent.includes('pinned') === {str(is_pinned).lower()}",
            )
            assert (folder / PIN).exists() is is_pinned


def test_a_trace_is_saved_by_a_click_and_not_shown(tmp_path: Path, page: Page) -> None:
    run_dir = write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    content = write_trace(run_dir)
    with open(run_dir.profile / "step_6.trace.json.gz", "wb") as file:
        file.truncate(TRACE_BYTES + 1)
    with serve(tmp_path) as served:
        page.goto(served.viewer_url)
        page.click("tr[data-run=small]")
        with page.expect_download() as begun:
            page.click(f"a[data-trace='{TRACE}']")
        assert Path(begun.value.path()).read_bytes() == content
        assert begun.value.suggested_filename == f"small-{TRACE}"
        assert "at most 16.0 MiB are sent" in page.inner_text("#traces")
        assert page.locator("#traces a").count() == 1
        assert served.origin in page.url, "the page stays"


def test_texts_of_a_run_stay_texts(tmp_path: Path, page: Page) -> None:
    end = AttemptEnded(1, 1, "failed", HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, 50)
    run_dir = write_run(tmp_path / "runs" / HOSTILE, (*FIRST_ATTEMPT, (12.0, "supervisor", end)))
    write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    write_metrics(run_dir, 20)
    write_checkpoint(run_dir, 50, complete=False)
    run_dir.attempt(1).mkdir(parents=True)
    run_dir.log(1, "trainer").write_text(f"{HOSTILE}\n</pre><script>window.broken=1</script>\n", encoding="utf-8")
    with serve(tmp_path) as served:
        page.goto(served.url)
        page.get_by_role("cell", name=HOSTILE, exact=True).first.click()
        wait(page, "document.getElementById('log').textContent.includes('<script>')")
        page.click("tr[data-failure]")
        wait(page, "document.getElementById('dialog-body').textContent.includes('<script>')")
        assert page.inner_text("#dialog-title").startswith(HOSTILE)
        assert page.evaluate("document.querySelectorAll('img, main script').length") == 0


def test_a_run_that_was_asked_to_stop_has_no_button_for_a_second_stop(tmp_path: Path, page: Page) -> None:
    run_dir = write_run(tmp_path / "runs" / "small", FIRST_ATTEMPT)
    with hold_run(run_dir), serve(tmp_path) as served:
        page.goto(served.url)
        page.wait_for_selector("button[data-command=stop]")
        asked = (*FIRST_ATTEMPT, (10.5, "supervisor", StopAsked(STOP_COMMAND)))
        write_events(run_dir, records(asked)[-1:])
        page.wait_for_selector("button[data-command=stop]", state="detached")


def test_a_viewer_has_no_buttons(tmp_path: Path, page: Page) -> None:
    run_dir = write_run(tmp_path / "runs" / "small", FIRST_ATTEMPT)
    with hold_run(run_dir), serve(tmp_path) as served:
        page.goto(served.viewer_url)
        page.wait_for_selector("#role:not([hidden])")
        page.wait_for_selector("#run-name:text('small')")
        assert not page.is_visible("#apply")
        assert not page.is_visible("button[data-command=stop]")
