"""The proposal of the policy on instability on the page: its values, its reason, and one click that accepts it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from prime_train.events import InstabilityFound
from prime_train.supervise.processes.lock import hold_run
from prime_train.supervise.processes.requests import Request
from tests.system.control.served import serve
from tests.system.control.test_server import answer_requests
from tests.unit.views.written_runs import FIRST_ATTEMPT, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
from tests.system.control.test_page import HOSTILE, page  # noqa: F401 - it skips without a browser

FOUND = InstabilityFound(1, 3, 50, f"the loss is 9 {HOSTILE}", ("optim.lr = 0.0005",), 40, auto=False)


def test_a_click_accepts_the_proposal(tmp_path: Path, page: Page) -> None:  # noqa: F811 - the fixture
    run_dir = write_run(tmp_path / "runs" / "small", (*FIRST_ATTEMPT, (11.0, "supervisor", FOUND)))
    run_dir.requests(1).mkdir(parents=True)
    taken: list[Request] = []
    is_over = threading.Event()
    supervisor = threading.Thread(target=answer_requests, args=(run_dir, taken, is_over))
    with hold_run(run_dir), serve(tmp_path) as served:
        supervisor.start()
        page.goto(served.url)
        page.wait_for_selector("#proposal button")
        assert "proposed: go back to step 40, then optim.lr = 0.0005" in page.inner_text("#proposal")
        assert f"the loss is 9 {HOSTILE}" in page.inner_text("#proposal")
        page.click("#proposal button")
        assert "Make this change: go back to step 40" in page.inner_text("#dialog-body")
        page.click("#dialog-yes")
        page.wait_for_selector(".notice")
        is_over.set()
        supervisor.join()
    assert {"command": "accept", "step": 3}.items() <= taken[0].body.items()
