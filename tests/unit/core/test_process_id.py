"""A process is one and the same only by pid and start time together; a mark names it and its host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train.core.process_id import (
    Holder,
    Identity,
    identify,
    live_holder,
    own_identity,
    own_mark,
    parse_holder,
    parse_identity,
)


def test_a_mark_names_this_process() -> None:
    holder = parse_holder(own_mark())
    assert holder == Holder(own_identity(), socket.gethostname())
    assert (holder.here, holder.counts, str(holder)) == (True, True, f"process {os.getpid()} on {holder.host}")


def test_a_number_that_went_to_another_process_is_not_the_process() -> None:
    mine = own_identity()
    assert mine.alive
    assert not Identity(mine.pid, mine.start_ticks + 1).alive
    assert parse_identity(str(mine)) == mine


def test_a_zombie_has_an_identity_and_does_not_live() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = identify(process.pid)
    process.communicate()
    assert identity is not None
    assert not identity.alive
    assert identify(process.pid) is None


def test_a_process_of_another_host_counts_as_alive() -> None:
    assert Holder(Identity(4194304, 1), "elsewhere.example.org").counts
    assert not Holder(Identity(4194304, 1), socket.gethostname()).counts


@pytest.mark.parametrize("text", ["", "\n", "12 here", "a:b here", "1:2", "1:2 here there", "1: here"])
def test_a_lock_with_another_text_names_no_process(tmp_path: Path, text: str) -> None:
    (tmp_path / "lock").write_text(text)
    assert live_holder(tmp_path / "lock") is None
    with pytest.raises(ValueError, match=r".*"):
        parse_holder(text)


def test_a_lock_that_is_missing_names_no_process(tmp_path: Path) -> None:
    assert live_holder(tmp_path / "lock") is None
    (tmp_path / "file").touch()
    assert live_holder(tmp_path / "file" / "lock") is None
