"""Control groups on the machine of the test; skipped where they cannot be written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from prime_train.core.process_id import Identity, identify, own_identity
from prime_train.supervise.launch import control_group
from prime_train.supervise.launch.program import Launch
from prime_train.supervise.processes import process

_LEAVES_NO_TRACE = """
import os, time
if os.fork() == 0:
    os.setsid()
    os.execve("/bin/sleep", ["sleep", "600"], {})
time.sleep(600)
"""


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Path]:
    made = control_group.create_group(tmp_path, own_identity(), 1)
    if made is None:
        pytest.skip("control groups of version 2 cannot be written here")
    yield made
    control_group.kill_group(made)
    control_group.remove_group(made)


def test_a_group_is_found_by_its_run_and_its_supervisor(group: Path, tmp_path: Path) -> None:
    assert control_group.find_groups(tmp_path, own_identity()) == [group]
    assert group in control_group.find_groups(tmp_path)
    assert control_group.find_groups(tmp_path, Identity(1, 1)) == []
    assert control_group.find_groups(tmp_path / "other") == []
    assert control_group.list_members(group) == []
    assert control_group.remove_group(group)
    assert control_group.remove_group(group)


def test_a_sweep_ends_everything_in_the_group_and_removes_it(group: Path, tmp_path: Path) -> None:
    """A daemon without the mark, in a session of its own, whose output goes elsewhere."""
    spared = process.list_own_children()
    launch = Launch("trainer", (sys.executable, "-c", _LEAVES_NO_TRACE), tmp_path, tmp_path / "log")
    inbox: SimpleQueue[object] = SimpleQueue()
    process.spawn(launch, 1, inbox, group)
    while not any(Path(f"/proc/{pid}/comm").read_text() == "sleep\n" for pid in _living(group)):
        pass
    members = [identify(pid) for pid in control_group.list_members(group)]
    assert len(members) == 3  # the guard, the program, its daemon
    assert process.sweep(tmp_path, spared, supervisor=own_identity()) == []
    assert not any(member.alive for member in members if member is not None)
    assert not group.exists()


def _living(group: Path) -> list[int]:
    return [pid for pid in control_group.list_members(group) if Path(f"/proc/{pid}/comm").exists()]


def test_where_no_group_can_be_written_there_is_none(tmp_path: Path) -> None:
    assert control_group.create_group(tmp_path, own_identity(), 1, tmp_path) is None  # a folder that is no group
    assert list(tmp_path.iterdir()) == []
    proc = tmp_path / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "mountinfo").write_text(f"30 23 0:26 / {tmp_path} rw - cgroup2 cgroup rw\n")
    (proc / "cgroup").write_text("0::/../outside\n")
    assert control_group.find_own_group(tmp_path / "proc") is None
