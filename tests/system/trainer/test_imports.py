"""What a trainer has imported before its first step. One process imports it: that takes longer than a training."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

_PROGRAM = """
import gc, json, sys
from prime_train.trainer.__main__ import import_loop
import_loop("pretrain")
garbage = [gc.isenabled(), gc.get_freeze_count() > 100_000, len(gc.get_objects()) < 1000]
print(json.dumps([sorted(sys.modules), garbage]))
"""


@pytest.fixture(scope="module")
def imported() -> Any:
    """The names of the modules, and what the garbage collector searches."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_trainer_starts_without_the_talkers_and_libraries_that_few_data_need(imported: Any) -> None:
    assert "prime_train.trainer.data.stream" in imported[0]
    talkers, readers = {"typer", "rich", "wandb", "matplotlib"}, {"transformers", "datasets", "pyarrow", "pandas"}
    assert (talkers | readers).isdisjoint(imported[0])


def test_the_training_loop_does_not_import_dcp_before_its_first_step(imported: Any) -> None:
    """It takes half a second that the time to the first step does not have."""
    assert [name for name in imported[0] if "distributed.checkpoint" in name] == []


def test_the_imports_are_not_searched_for_garbage_and_what_follows_is(imported: Any) -> None:
    assert imported[1] == [True, True, True]
