"""The page under a person's hands: two editors at once, the keyboard, a click during an update, hostile names."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from prime_train.core.plans import ChangePlan, write_plan
from prime_train.core.rundir import RunDir
from prime_train.events import Progress
from prime_train.supervise.processes.lock import hold_run
from tests.system.control.served import CONFIG, serve
from tests.unit.views.written_runs import FIRST_ATTEMPT, WHOLE_LIFE, records, write_config, write_events, write_run

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
from tests.system.control.test_page import page, supervising, wait  # noqa: F401 - it skips without a browser


def report_step(run_dir: RunDir, *steps: int) -> None:
    """The last of the steps, after those that are reported already."""
    made = [(12.0, "trainer-001-rank0", Progress(1, step, 5.0, 1.0, 1)) for step in steps]
    write_events(run_dir, records((*FIRST_ATTEMPT, *made))[-1:])


def test_an_editor_sees_the_version_that_came_while_it_was_used(tmp_path: Path, page: Page) -> None:  # noqa: F811
    run_dir = write_run(tmp_path / "runs" / "small", FIRST_ATTEMPT)
    write_config(run_dir, CONFIG)
    other = ChangePlan(
        version=1, values={"optim.lr": 5e-4}, before={"optim.lr": 1e-3}, config={"optim.lr": 1e-3}, by="ann"
    )
    with supervising(run_dir) as taken, serve(tmp_path) as served:
        page.goto(served.url)
        page.fill("#by", "ben")
        page.fill("input[data-key='optim.lr']", "2e-4")
        wait(page, "document.getElementById('preview').textContent.includes('checked as in the config')")
        write_plan(run_dir.settings, other)
        report_step(run_dir, 51)
        page.wait_for_selector("#preview .refused")
        assert "version 1 came while this was written\nann set optim.lr = 0.0005" in page.inner_text("#preview")
        assert "optim.lr: 0.0005 → 0.0002" in page.inner_text("#preview")
        assert page.inner_text("[data-value='optim.lr']") == "0.0005"
        assert page.is_disabled("#apply")
        page.click("#preview button")
        page.click("#apply")
        page.wait_for_selector(".notice")
        assert [(one.body["expected"], one.body["by"]) for one in taken] == [(1, "ben")]
        assert page.input_value("#by") == "ben", "the name of the author stays for the next change"


def test_updates_take_neither_the_keyboard_nor_a_click_away(tmp_path: Path, page: Page) -> None:  # noqa: F811
    run_dir = write_run(tmp_path / "runs" / "small", FIRST_ATTEMPT)
    write_run(tmp_path / "runs" / "other", WHOLE_LIFE)
    with hold_run(run_dir), serve(tmp_path) as served:
        page.goto(f"{served.origin}/?t={served.token}#%")
        page.wait_for_selector("tr[data-run=small]")
        page.focus("tr[data-run=small]")
        report_step(run_dir, 77)
        wait(page, "document.querySelector('tr[data-run=small] .step').textContent.startsWith('77')")
        assert page.evaluate("document.activeElement.dataset.run") == "small"
        page.hover("tr[data-run=small] .step")
        page.mouse.down()
        report_step(run_dir, 77, 78)
        wait(page, "model.runs.small.step === 78")
        assert page.inner_text("tr[data-run=small] .step").startswith("77")
        page.mouse.up()
        wait(page, "document.querySelector('tr[data-run=small] .step').textContent.startsWith('78')")
        wait(page, "document.querySelector('tr[data-run=small]').className === 'choice chosen'")
        page.focus("tr[data-run=other]")
        page.keyboard.press("Enter")
        wait(page, "document.getElementById('run-name').textContent === 'other'")


def test_a_run_may_have_the_name_of_a_prototype(tmp_path: Path, page: Page) -> None:  # noqa: F811
    for name in ("__proto__", "constructor"):
        write_run(tmp_path / "runs" / name, WHOLE_LIFE)
    with serve(tmp_path) as served:
        page.goto(served.url)
        for name in ("__proto__", "constructor"):
            page.click(f"tr[data-run={name}]")
            wait(page, f"document.getElementById('run-name').textContent === '{name}'")


def test_a_page_that_was_opened_too_early_works_later(tmp_path: Path, page: Page) -> None:  # noqa: F811
    run_dir = write_run(tmp_path / "runs" / "small", FIRST_ATTEMPT)
    write_config(run_dir, CONFIG)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with hold_run(run_dir), serve(tmp_path, port) as served:
        page.route("**/api/state", lambda route: route.abort("connectionrefused"), times=1)
        page.goto(served.url)
        page.wait_for_selector("input[data-key='optim.lr']")
        page.fill("input[data-key='optim.lr']", "2e-4")
        wait(page, "document.getElementById('preview').textContent.includes('checked as in the config')")
