from __future__ import annotations

from pathlib import Path

from prime_train.facts.facts import NotKnown
from prime_train.facts.host import measure_speed, save_dir
from prime_train.facts.machine import DiskSpeed


def test_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    found = save_dir(tmp_path / "runs" / "mine")
    assert found.existing == tmp_path
    assert found.path == tmp_path / "runs" / "mine"
    assert found.free_bytes > 0
    assert found.held_bytes == 0
    assert found.refusal == ""
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    assert save_dir(tmp_path / "runs" / "mine").refusal == f"{tmp_path / 'runs'} is not a folder"


def test_a_place_that_takes_no_files() -> None:
    """/proc takes no file from anyone, root included."""
    found = save_dir(Path("/proc/prime-train-run"))
    assert found.existing == Path("/proc")
    assert found.refusal


def test_checkpoints_of_this_run_count_as_room(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "step_10"
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"x" * 1000)
    assert save_dir(tmp_path).held_bytes == 1000


def test_the_file_system_has_a_name(tmp_path: Path) -> None:
    assert save_dir(tmp_path / "mine").file_system
    assert save_dir(Path("/dev/shm/gone")).file_system == "tmpfs"


def test_the_speed_of_a_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    found = measure_speed(tmp_path / "runs" / "mine")
    assert isinstance(found, DiskSpeed)
    assert found.bytes_per_s > 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_no_file_has_no_speed() -> None:
    assert measure_speed(Path("/proc/mine")) == NotKnown("a file in /proc: No such file or directory")


def test_a_disk_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    found = measure_speed(tmp_path, deadline_s=0.001)
    assert isinstance(found, NotKnown)
    assert "no answer" in found.reason
