"""The table of the driver's errors: whole, sourced, and right where it decides over a run."""

from __future__ import annotations

import datetime

import pytest

from prime_train.registry.gpus import XidEntry, xid, xids


@pytest.mark.parametrize("entry", xids().values(), ids=lambda entry: str(entry.code))
def test_an_entry_says_all_that_a_message_needs(entry: XidEntry) -> None:
    assert entry.name
    assert entry.why
    assert entry.fix
    assert entry.source.startswith("NVIDIA XID catalogue")
    assert datetime.date.fromisoformat(entry.as_of)
    assert entry.answer in ("note", "alert", "restart")
    assert entry.cause_class in ("hardware", "unknown")


def test_what_the_catalogue_ignores_ends_no_attempt() -> None:
    assert not [entry.code for entry in xids().values() if entry.nvidia_action == "IGNORE" and entry.answer != "note"]


def test_what_wants_a_reset_ends_the_attempt_and_counts_against_the_gpu() -> None:
    wants = [entry for entry in xids().values() if entry.nvidia_action in ("RESET_GPU", "RESTART_BM")]
    assert len(wants) > 10
    assert not [entry.code for entry in wants if entry.answer != "restart" or not entry.leave_out]


@pytest.mark.parametrize(
    ("code", "answer", "cause_class", "leave_out"),
    [
        (13, "restart", "unknown", True),
        (31, "restart", "unknown", True),
        (43, "note", "hardware", False),
        (45, "note", "hardware", False),
        (63, "note", "hardware", False),
        (79, "restart", "hardware", True),
        (92, "note", "hardware", False),
        (94, "restart", "hardware", False),
        (9999, "alert", "hardware", False),
    ],
)
def test_what_follows(code: int, answer: str, cause_class: str, leave_out: bool) -> None:
    entry = xid(code)
    assert (entry.answer, entry.cause_class, entry.leave_out) == (answer, cause_class, leave_out)
