"""The table of launchers against the argument parser of torchrun itself."""

from __future__ import annotations

import pytest

from prime_train.registry.launchers import launchers


def test_flags_of_torchrun() -> None:
    run = pytest.importorskip("torch.distributed.run")
    torchrun = next(launcher for launcher in launchers() if launcher.name == "torchrun")
    actions = [action for action in run.get_args_parser()._actions if action.option_strings]
    names = {
        option.lstrip("-").replace("-", "_")
        for action in actions
        for option in action.option_strings
        if option[:2] == "--"
    }
    switches = {
        option.lstrip("-").replace("-", "_")
        for action in actions
        if action.nargs == 0
        for option in action.option_strings
        if option[:2] == "--"
    }
    assert switches <= torchrun.switches
    assert not torchrun.switches & (names - switches)
    assert torchrun.flags <= names
