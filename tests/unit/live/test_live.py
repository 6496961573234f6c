"""A script reports to its supervisor, at no risk to itself: what a reader gets of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train import live, live_ranks
from prime_train.live_report import RankReport
from prime_train.programs.command.live_lines import LiveLine, LiveLines, parse_live_line


@contextmanager
def supervised(folder: Path, *, rank: str = "0", world: str = "1") -> Iterator[RankReport]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "_rank", rank)
        patch.setattr(live, "_world", world)
        patch.setattr(live, "_BETWEEN_LOOKS_S", 0.0)
        lines = RankReport(folder, rank)
        patch.setattr(live, "_lines", lines)
        yield lines


def test_without_a_supervisor_nothing_is_written_and_nothing_stops(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(live, "_lines", None)
    live.step(1, loss=2.0)
    live.phase("evaluate")
    live.total(5)
    live.finish()
    assert not live.should_stop()
    assert live.resume_path() is None
    assert not any(tmp_path.iterdir())


def test_a_reader_gets_every_kind_of_line(tmp_path: Path) -> None:
    with supervised(tmp_path):
        live.total(8)
        live.step(3, loss=1.5, tokens=64)
        live.phase("evaluate", limit_s=90)
        live.step(4, loss=float("nan"))
        live.finish()
    found = LiveLines(tmp_path).take()
    assert [line.step for line in found] == [0, 3, 3, 4, 4]
    assert (found[0].total, found[1].loss, found[1].tokens, found[2].phase) == (8, 1.5, 64.0, "evaluate")
    assert [line.limit_s for line in found[2:4]] == [90.0, 0.0]
    assert str(found[3].loss) == "nan"
    assert found[4].finished


def test_a_fast_loop_writes_few_lines_and_the_newest_step_before_a_phase(tmp_path: Path) -> None:
    with supervised(tmp_path):
        for number in range(1, 10_001):
            live.step(number)
        live.phase("evaluate")
    found = LiveLines(tmp_path).take()
    assert len(found) < 1000
    assert [line.step for line in found[-2:]] == [10_000, 10_000]


def test_a_reader_takes_each_line_once(tmp_path: Path) -> None:
    reader = LiveLines(tmp_path)
    with supervised(tmp_path) as lines:
        live.step(1)
        assert [line.step for line in reader.take()] == [1]
        live.step(2)
        lines.flush()
        assert [line.step for line in reader.take()] == [2]
    assert reader.take() == ()


def test_the_loss_may_be_a_tensor(tmp_path: Path) -> None:
    class Tensor:
        def __float__(self) -> float:
            return 2.5

    class Several:
        def __float__(self) -> float:
            raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")

    with supervised(tmp_path) as lines:
        live.step(1, loss=Tensor())
        live.step(2, loss=Several())
        lines.flush()
    assert [line.loss for line in LiveLines(tmp_path).take()] == [2.5, None]


def test_a_write_that_takes_a_part_loses_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda file, data: whole(file, data[:7]))
    with supervised(tmp_path):
        live.step(3, loss=1.5)
        live.checkpoint(tmp_path, 3)
        live.finish()
    monkeypatch.undo()
    found = LiveLines(tmp_path).take()
    assert [line.step for line in found] == [3, 3, 3]
    assert found[-1].finished


def test_a_folder_that_is_gone_and_a_full_disk_end_nothing(tmp_path: Path) -> None:
    with supervised(tmp_path / "gone"):
        live.step(1)
        live.phase("evaluate")
        assert not live.should_stop()
    full = Path("/dev/full")
    with supervised(tmp_path) as lines:
        lines._path = full
        live.phase("evaluate")


def test_a_checkpoint_folder_is_complete_when_its_manifest_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "step_5"
    (folder / "shards").mkdir(parents=True)
    (folder / "model.pt").write_bytes(b"12345")
    (folder / "shards" / "one").write_bytes(b"1")
    with supervised(tmp_path):
        live.checkpoint(folder, 5)
    manifest = json.loads((folder / "COMPLETE.json").read_text())
    assert manifest == {
        "version": 1,
        "step": 5,
        "files": {"model.pt": {"bytes": 5}, "shards/one": {"bytes": 1}},
    }
    (line,) = LiveLines(tmp_path).take()
    assert (line.checkpoint, line.of_step) == (str(folder), 5)


def test_a_checkpoint_of_one_file_has_its_manifest_beside_it(tmp_path: Path) -> None:
    (tmp_path / "last.pt").write_bytes(b"123")
    live.checkpoint(tmp_path / "last.pt", 7)
    assert json.loads((tmp_path / "last.pt.COMPLETE.json").read_text())["files"] == {"last.pt": {"bytes": 3}}


def test_the_chosen_checkpoint_is_read_from_the_folder(tmp_path: Path) -> None:
    with supervised(tmp_path):
        assert live.resume_path() is None
        (tmp_path / "resume").write_text("/out/checkpoint-8\n")
        assert live.resume_path() == "/out/checkpoint-8"


def test_one_process_stops_at_once(tmp_path: Path) -> None:
    with supervised(tmp_path):
        assert not live.should_stop()
        (tmp_path / "stop").touch()
        assert live.should_stop()


@given(order=st.lists(st.sampled_from([0, 1]), max_size=60), asked_at=st.integers(0, 20))
def test_all_ranks_stop_at_the_same_step(order: list[int], asked_at: int, tmp_path_factory: Any) -> None:
    """Two ranks that synchronise their gradients: neither begins step n + 2 before the other has done step n."""
    folder = tmp_path_factory.mktemp("live")
    lines = [RankReport(folder, "0"), RankReport(folder, "1")]
    stopped: list[int | None] = [None, None]

    def do_step(rank: int) -> None:
        other = lines[1 - rank].newest
        if stopped[rank] is not None or lines[rank].newest > other:  # it waits for the gradients of the other
            return
        lines[rank].newest += 1
        if live_ranks.stops_with_others(lines[rank]):
            stopped[rank] = lines[rank].newest

    for turn, rank in enumerate([*order, *([0, 1] * 40)]):
        if turn == asked_at:
            (folder / "stop").touch()
        do_step(rank)
    assert stopped[0] is not None
    assert stopped[0] == stopped[1]


def test_one_process_saves_once_for_each_request(tmp_path: Path) -> None:
    with supervised(tmp_path):
        assert not live.should_save()
        for _ in range(2):
            (tmp_path / "save").touch()
            assert [live.should_save(), live.should_save()] == [True, False]
    assert any(line.saves for line in LiveLines(tmp_path).take())


@given(order=st.lists(st.sampled_from([0, 1]), max_size=80), asked_at=st.sets(st.integers(0, 60), min_size=1))
def test_all_ranks_save_at_the_same_steps(order: list[int], asked_at: set[int], tmp_path_factory: Any) -> None:
    """Two ranks that synchronise their gradients: neither begins step n + 2 before the other has done step n."""
    folder = tmp_path_factory.mktemp("live")
    lines = [RankReport(folder, "0"), RankReport(folder, "1")]
    saved: list[list[int]] = [[], []]

    def do_step(rank: int) -> None:
        if lines[rank].newest > lines[1 - rank].newest:
            return
        lines[rank].newest += 1
        if live_ranks.saves_with_others(lines[rank]):
            saved[rank].append(lines[rank].newest)

    for turn, rank in enumerate([*order, *([0, 1] * 60)]):
        if turn in asked_at:
            (folder / "save").touch()
        do_step(rank)
    assert saved[0]
    assert saved[0] == saved[1]
    assert not (folder / "save").exists()


def test_ranks_on_several_machines_ask_all(monkeypatch: Any, tmp_path: Path) -> None:
    asked: list[bool] = []

    def ask(wants: bool) -> bool:
        asked.append(wants)
        return False

    (tmp_path / "stop").touch()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setattr(live, "agree", ask)
    with supervised(tmp_path, world="2"):
        assert not live.should_stop()  # the others have not been asked to
    assert asked == [True]


@given(st.binary(max_size=200))
def test_a_hostile_line_is_left_out_or_has_plain_values(line: bytes) -> None:
    parsed = parse_live_line(line, 0)
    assert parsed is None or (parsed.step >= 0 and isinstance(parsed.at_s, float))


@pytest.mark.parametrize(
    "line",
    [
        b'{"t": 1, "step": -1}',
        b'{"t": 1, "step": 1e400}',
        b'{"t": 1, "step": true}',
        b'{"t": "x", "step": 1}',
        b'{"step": 1}',
        b"[1, 2]",
        b'{"t": 1, "step": ' + b"9" * 400 + b"}",
        b"[" * 5000,
    ],
)
def test_a_line_of_another_form_is_left_out(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "rank0-1.jsonl").write_bytes(line + b'\n{"t": 2, "step": 4}\n')
    reader = LiveLines(tmp_path)
    assert reader.take() == (LiveLine(0, 2.0, 4),)
    assert reader.left_out == 1


def test_links_pipes_and_other_names_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"t": 2, "step": 4}\n')
    (tmp_path / "rank0-1.jsonl").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "rank0-2.jsonl")
    assert LiveLines(tmp_path).take() == ()


def test_a_text_with_control_characters_is_left_out() -> None:
    parsed = parse_live_line(json.dumps({"t": 1, "step": 1, "note": "\x1b[31m", "phase": "a\nb"}).encode(), 0)
    assert parsed is not None
    assert (parsed.note, parsed.phase) == ("", "")


@pytest.mark.parametrize("limit_s", [0, -1, 1e12, "nan", "inf", True, "60", [60]])
def test_a_limit_that_no_phase_can_have_is_none(limit_s: object) -> None:
    parsed = parse_live_line(json.dumps({"t": 1, "step": 1, "phase": "a", "limit_s": limit_s}).encode(), 0)
    assert parsed is not None
    assert parsed.limit_s == 0.0


def test_a_loader_that_was_forked_has_a_file_of_its_own(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv(live.FOLDER_ENV, str(tmp_path))
    with supervised(tmp_path):
        live.step(1)
        monkeypatch.setattr("os.getpid", lambda: 12345)
        live._forget_parent()
        live.step(2)
        monkeypatch.undo()
    assert {path.name for path in tmp_path.glob("*-12345.jsonl")} == {"rank0-12345.jsonl"}
