"""What a reader returns does not depend on where its bytes are cut, and no bytes make it fail."""

from __future__ import annotations

import base64
import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.programs.command.progress.event_file import masked_crc
from prime_train.programs.command.progress.files import open_reader, recognise_file
from prime_train.programs.command.progress.lines import LONGEST_LINE, LineSplitter
from prime_train.programs.command.progress.log_progress import LogProgress
from prime_train.programs.command.progress.marks import ProgressMark, ProgressReader, parse_count, parse_number
from prime_train.registry.trainers import TrainerFile, launcher_lines, trainer_profile, trainer_profiles

# Written by tensorboard 2.21.0 through torch 2.13: train/loss 3.5, 2.25, nan at steps 1, 2, 12; a text; lr at step 13.
EVENTS = base64.b64decode(
    "SAAAAAAAAAD+kkidCUsT2m3TwtpBGg1icmFpbi5FdmVudDoyUi4KLHRlbnNvcmJvYXJkLnN1bW1hcnkud3JpdGVyLmV2ZW50X2ZpbGVfd3JpdGVy"
    "9JJ7XCAAAAAAAAAAKe2pUAkWHNpt08LaQRABKhMKEQoKdHJhaW4vbG9zcxUAAGBA0p9QwiAAAAAAAAAAKe2pUAmTHNpt08LaQRACKhMKEQoKdHJh"
    "aW4vbG9zcxUAABBApxiWcCAAAAAAAAAAKe2pUAnVHNpt08LaQRAMKhMKEQoKdHJhaW4vbG9zcxUAAMB/bloYAGoAAAAAAAAAr4HtZwm6Hdpt08La"
    "QRANKl0KWwoRbm90ZS90ZXh0X3N1bW1hcnlCPAgHEgQSAggBQjJ4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4eHh4"
    "eHh4eEoICgYKBHRleHTZUT7jGAAAAAAAAACjf0siCf8d2m3TwtpBEA0qCwoJCgJschUAAAA/h7rl8g=="
)
LOSS = "{'loss': '2.1', 'grad_norm': '1.0', 'learning_rate': '4e-05', 'epoch': '0.5'}"
LOG = (
    "Total optimization steps = 1,000\n"
    + "".join(f"\r {step // 10}%|██| {step}/1000 [00:04<00:07, 1.68it/s]\x1b[A" for step in range(1, 40))
    + f"{LOSS}\n[rank0]:{LOSS}\r\n  4%|█ | 41/1000 [00:04<00:07, 1.68it/s]{LOSS}\nÜ\n"
).encode()
ROWS = b'{"step": 1, "loss": 2.5}\n{"step": 2, "loss": NaN}\nno row\n{"loss": 1}\n{"step": 3, "loss": 2.25}'
TABLE = b"epoch,step,train_loss,val_loss\n0,49,2.5,\n0,49,,2.75\n0,99,2.25,\n0,149,2.1"
STATE = json.dumps(
    {"global_step": 20, "max_steps": 50, "log_history": [{"loss": 3.0, "step": 10}, {"eval_loss": 2.0, "step": 20}]}
).encode()
SPANS = b"".join(
    json.dumps({"log_type_name": name, "step": step, "rank": 1}).encode() + b"\n"
    for step in (1, 2)
    for name in ("step_start", "fwd_bwd_start", "optim_start", "optim_end", "eval_start", "step_end")
)
FILES: dict[str, tuple[TrainerFile, bytes]] = {
    "jsonl": (TrainerFile("m", "jsonl", "", loss=("loss",)), ROWS),
    "csv": (TrainerFile("m", "csv", "", loss=("train_loss",), offset=1), TABLE),
    "tensorboard": (TrainerFile("m", "tensorboard", "", loss=("train/loss",)), EVENTS),
    "trainer_state": (TrainerFile("m", "trainer_state", "", "global_step", "max_steps", ("loss",)), STATE),
    "torchtitan": (TrainerFile("m", "torchtitan", ""), SPANS),
    "log": (TrainerFile("m", "log", ""), LOG),
}


def open_kind(kind: str) -> ProgressReader:
    return open_reader(FILES[kind][0], trainer_profile("hf").lines)


def read(reader: ProgressReader, *chunks: bytes) -> list[str]:
    """The marks as text, because nan is not equal to itself."""
    marks: list[ProgressMark] = []
    for chunk in chunks:
        marks += reader.feed(chunk)
    return [repr(mark) for mark in (*marks, *reader.finish())]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@pytest.mark.parametrize("kind", FILES)
@given(places=st.lists(st.integers(0, 10_000), max_size=30))
def test_where_the_bytes_are_cut_changes_nothing(kind: str, places: list[int]) -> None:
    data = FILES[kind][1]
    whole = read(open_kind(kind), data)
    assert whole
    assert read(open_kind(kind), *cut(data, places)) == whole


@pytest.mark.parametrize("kind", FILES)
@given(data=st.binary(max_size=400), place=st.integers(0, 10_000), places=st.lists(st.integers(0, 10_000), max_size=4))
def test_no_bytes_make_a_reader_fail(kind: str, data: bytes, place: int, places: list[int]) -> None:
    good = FILES[kind][1]
    at = place % len(good)
    for content in (data, good[:at] + data + good[at:], good[:at] + data):
        assert read(open_kind(kind), *cut(content, places)) == read(open_kind(kind), content)


@given(
    text=st.text(alphabet="%|/[]0123456789 {'loss: }step\r\n\x1b", max_size=300), places=st.lists(st.integers(0, 400))
)
def test_no_text_makes_a_profile_fail(text: str, places: list[int]) -> None:
    for profile in trainer_profiles().values():
        lines = (*profile.lines, *launcher_lines())
        whole = read(LogProgress(lines, profile.phases), text.encode())
        assert read(LogProgress(lines, profile.phases), *cut(text.encode(), places)) == whole


def test_a_line_without_end_takes_no_memory() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"x" * 10_000_000) == []
    assert [len(line) for line in splitter.feed(b"y" * 10_000_000 + b"\rstep")] == [LONGEST_LINE]
    assert splitter.finish() == ["step"]


def test_a_bar_and_what_stands_behind_it_are_two_lines() -> None:
    bar = " 4%|█ | 41/1000 [00:04<00:07, 1.68it/s]"
    assert LineSplitter().feed(f"{bar}{LOSS}\r{bar}{bar}x\n".encode()) == [bar, LOSS, bar, bar, "x"]


def steps(marks: tuple[ProgressMark, ...]) -> list[tuple[int | None, float | None]]:
    return [(mark.step, mark.loss) for mark in marks if mark.kind == "step"]


def test_rows_and_columns() -> None:
    reader = open_kind("jsonl")
    assert repr(steps(reader.feed(ROWS) + reader.finish())) == "[(1, 2.5), (2, nan), (3, 2.25)]"
    reader = open_kind("csv")
    assert steps(reader.feed(TABLE) + reader.finish()) == [(50, 2.5), (50, None), (100, 2.25)], "the last row is cut"
    reader = open_kind("trainer_state")
    marks = reader.feed(STATE) + reader.finish()
    assert [(mark.kind, mark.step, mark.total) for mark in marks] == [
        ("step", 10, None),
        ("eval", 20, None),
        ("step", 20, 50),
    ]


def test_a_step_of_torchtitan_is_done_with_its_update() -> None:
    reader = open_kind("torchtitan")
    marks = reader.feed(SPANS)
    assert [(mark.kind, mark.step, mark.phase) for mark in marks] == [
        ("step", 1, ""),
        ("phase", 1, "eval"),
        ("step", 2, ""),
        ("phase", 2, "eval"),
    ]
    failed = b'{"log_type_name": "optim_error", "step": 3}\n{"log_type_name": "optim_end", "step": 3}\n'
    assert reader.feed(failed) == ()


def test_events_are_read_and_checked() -> None:
    reader = open_kind("tensorboard")
    assert repr(steps(reader.feed(EVENTS))) == "[(1, 3.5), (2, 2.25), (12, nan), (13, None)]"
    assert masked_crc(b"123456789") == (((0xE3069283 >> 15) | (0xE3069283 << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@given(place=st.integers(0, len(EVENTS) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_gives_no_wrong_step(place: int, bit: int) -> None:
    """The marks before the damage stay, and none of a damaged record is made."""
    whole = read(open_kind("tensorboard"), EVENTS)
    broken = bytearray(EVENTS)
    broken[place] ^= 1 << bit
    found = read(open_kind("tensorboard"), bytes(broken))
    assert found == whole[: len(found)]
    assert len(found) < len(whole)


@pytest.mark.parametrize("kind", [kind for kind in FILES if kind not in ("log", "csv")])
def test_a_file_is_recognised_by_its_first_bytes(kind: str) -> None:
    found = recognise_file("m", FILES[kind][1])
    assert found is not None
    assert found.kind == kind


def test_a_file_that_has_its_last_step_in_each_row_is_recognised_with_it() -> None:
    row = b'{"current_steps": 10, "total_steps": 40, "loss": 1.5}\n'
    found = recognise_file("m", row)
    assert found is not None
    assert [mark.total for mark in open_reader(found).feed(row) if mark.step == 10] == [40]
    without = recognise_file("m", b'{"current_steps": 10, "loss": 1.5}\n')
    assert without is not None
    assert without.total == ""


def test_rows_of_which_the_last_one_sums_up_the_run_are_no_state_of_a_trainer() -> None:
    """The loss of the summary is the mean of all steps, and not that of the last one."""
    data = (
        b'{"loss": 2.5, "global_step/max_steps": "1/2"}\n{"loss": 0.5, "global_step/max_steps": "2/2"}\n'
        b'{"train_runtime": 9.5, "train_loss": 1.5, "global_step/max_steps": "2/2"}\n'
        b'{"global_step": 2, "max_steps": 2, "log_history": [{"loss": 2.5, "step": 1}]}\n'
    )
    found = recognise_file("m", data)
    assert found is not None
    assert found.kind == "jsonl"
    marks = open_reader(found).feed(data)
    assert [(mark.step, mark.total, mark.loss) for mark in marks] == [(1, 2, 2.5), (2, 2, 0.5), (2, 2, None)]


def test_a_table_is_recognised_by_its_header() -> None:
    found = recognise_file("m", TABLE)
    assert (found is not None, found and found.kind, found and found.step) == (True, "csv", "step")
    for other in (b"", b"step\n1\n", b"a,b\n1,2\n", LOG, b"step 1, loss 2\n", b"\x00" * 64, b"[1, 2]\n"):
        assert recognise_file("m", other) is None


@given(st.one_of(st.text(max_size=60), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.integers())))
def test_any_value_is_a_number_or_none(value: object) -> None:
    count, number = parse_count(value), parse_number(value)
    assert count is None or 0 <= count <= 10**15
    assert number is None or isinstance(number, float)


def test_numbers_as_trainers_write_them() -> None:
    assert parse_count("1,016,513") == 1016513
    assert [parse_count(text) for text in ("-1", "1.5", "", "٣", "9" * 30)] == [None] * 5
    assert parse_number("6.5e-05") == 6.5e-05
    assert math.isnan(parse_number("nan") or 0.0)
    assert parse_number("-inf") == -math.inf
    assert [parse_number(text) for text in ("", "-", "1e", "0x1", "--1")] == [None] * 5
