"""The table of the driver's errors: whole, sourced, and right where it decides over a run."""

from __future__ import annotations

import datetime

import pytest

from prime_train.registry.gpus import XidEntry, xid, xids


@pytest.mark.parametrize("entry", xids().values(), ids=lambda entry: str(entry.code))
def test_an_entry_states_all_that_a_message_needs(entry: XidEntry) -> None:
    assert entry.name
    assert entry.why
    assert entry.fix
    assert entry.source.startswith("NVIDIA XID catalogue")
    assert datetime.date.fromisoformat(entry.as_of)
    assert entry.answer in ("note", "alert", "restart")
    assert entry.cause_class in ("hardware", "unknown")


def test_what_the_catalogue_ignores_ends_no_attempt() -> None:
    assert not [entry.code for entry in xids().values() if entry.nvidia_action == "IGNORE" and entry.answer != "note"]


def test_what_wants_a_reset_ends_the_attempt() -> None:
    wants = [entry for entry in xids().values() if entry.nvidia_action in ("RESET_GPU", "RESTART_BM")]
    assert len(wants) > 10
    assert not [entry.code for entry in wants if entry.answer != "restart"]


@pytest.mark.parametrize(
    ("code", "answer", "cause_class"),
    [
        (13, "restart", "unknown"),
        (31, "restart", "unknown"),
        (43, "note", "hardware"),
        (45, "note", "hardware"),
        (63, "note", "hardware"),
        (79, "restart", "hardware"),
        (92, "note", "hardware"),
        (94, "restart", "hardware"),
        (9999, "alert", "hardware"),
    ],
)
def test_what_follows(code: int, answer: str, cause_class: str) -> None:
    entry = xid(code)
    assert (entry.answer, entry.cause_class) == (answer, cause_class)
