"""Rate and batch size of two ranks that train on images, changed in the page's editor of a real Chromium meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from prime_train.views.run.status import fold_events
from tests.system.control.served import serve
from tests.system.control.test_digits import rows, start
from tests.unit.cli.commands import prime_train, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
from tests.system.control.test_page import page, wait  # noqa: F401 - it skips without a browser

BEFORE, AFTER = (0.1, 16), (0.05, 32)  # rate, and images of a rank: half of the batch


def shown(page: Page, element: str, text: str) -> None:  # noqa: F811 - the fixture
    wait(page, f"document.getElementById('{element}').textContent.includes('{text}')")


def test_both_ranks_follow_the_editor_at_the_same_step(tmp_path: Path, page: Page) -> None:  # noqa: F811 - the fixture
    supervised = start(tmp_path)
    try:
        run_dir = supervised.run_dir
        wait_until(lambda: fold_events(run_dir).step > 0)
        with serve(tmp_path) as served:
            page.goto(served.url)
            page.fill("input[data-key=lr]", "0.05")
            page.fill("input[data-key=batch_size]", "64")
            assert "lr: 0.1 → 0.05" in page.inner_text("#preview")
            assert "batch_size: 32 → 64" in page.inner_text("#preview")
            shown(page, "preview", "checked as in the config")
            page.fill("#why", "the loss is flat")
            page.click("#apply")
            page.wait_for_selector(".notice")
            assert "accepted: settings version 1" in page.inner_text("#notices")
            wait_until(lambda: len(fold_events(run_dir).settings_applied) == 1)
            ((version, first),) = fold_events(run_dir).settings_applied
            wait_until(lambda: fold_events(run_dir).step > first + 20)
            shown(page, "versions", f"{version}: lr = 0.05, batch_size = 64")
            shown(page, "versions", f"in force from step {first:,}")
            wait(page, "document.querySelector('.key:has([data-key=batch_size]) .num').textContent === '64'")
            wait(
                page,
                f"(document.querySelector('[data-plot=loss]')?.layout.shapes ?? []).some(one => one.x0 === {first})",
            )
            assert page.input_value("input[data-key=lr]") == ""
        stopped = prime_train("stop", "digits", cwd=tmp_path)
        code, err = supervised.await_end()
    finally:
        supervised.kill()
    assert (stopped.returncode, code) == (0, 75), err
    for rank in (0, 1):
        steps = rows(tmp_path, rank)
        assert min(steps) < first < max(steps)
        for step, row in steps.items():
            assert (row["lr"], row["images"]) == (AFTER if step >= first else BEFORE), (rank, step)
