"""A machine of a real training on two is drained and returned by the buttons of the page, in a real Chromium."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from prime_train.events import GpuTested
from tests.system.control.served import serve
from tests.system.supervise.machines.commanded_run import run_at
from tests.unit.cli.commands import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
from tests.system.control.test_page import page, wait  # noqa: F401 - it skips without a browser

MEMBER = "[data-of=small][data-member=machine-1]"


def press(page: Page, button: str, answer: str) -> None:  # noqa: F811 - the fixture
    """Click it when it may be clicked, and wait for the answer of the supervisor."""
    page.click(f"{button}:not([disabled])")
    page.click("#dialog-yes")
    page.wait_for_selector(f".notice:has-text('{answer}')")


def test_a_machine_leaves_and_comes_back_by_the_page(tmp_path: Path, page: Page) -> None:  # noqa: F811 - the fixture
    with run_at(tmp_path) as run, ExitStack() as stack:
        first, second = run.start(0), run.start(1)
        run.await_step(1)
        served = stack.enter_context(serve(tmp_path / "0"))
        page.goto(served.url)
        page.wait_for_selector("[data-device='small/1']")
        shown = served.get("/api/state").document["machines"]
        assert list(shown["small/machine-1"]["devices"]) == ["small/1"]
        press(page, f"button[data-command=drain]{MEMBER}", "attempt 1 on 2 ranks is asked to save and to end")
        wait(page, "document.getElementById('devices').textContent.includes('drained; passed: cpu passed')")
        assert [(one.gpu, one.passed) for one in run.events(GpuTested)] == [("machine-1", True)]
        assert page.query_selector("[data-device]") is None
        step = run.newest_complete()
        press(page, f"button[data-command=test]{MEMBER}", "testing machine-1")
        wait_until(lambda: len(run.events(GpuTested)) == 2)
        press(page, f"button[data-command=return]{MEMBER}", "may use machine-1 again")
        page.wait_for_selector(f"button[data-command=return]{MEMBER}[disabled]")
        press(page, "#commands button[data-command=resume]", "attempt 2 is launched")
        assert run.await_step(2) > step
        page.wait_for_selector("[data-device='small/1']")
        run.stop(first, second)
