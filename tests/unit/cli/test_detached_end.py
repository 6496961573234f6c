from __future__ import annotations

import pytest
import typer

from prime_train.cli.run.detached import _ended


@pytest.mark.parametrize(("code", "shown"), [(0, 0), (5, 5), (130, 130), (141, 141), (-9, 137)])
def test_any_end_before_the_launch_is_passed_on(code: int, shown: int) -> None:
    """130 is that of a Ctrl-C during the checks, and no member of ExitCode."""
    with pytest.raises(typer.Exit) as end:
        _ended(code)
    assert end.value.exit_code == shown
