"""Lines of the kernel's log as drivers of several years write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.supervise.watches.kernel_log import FALLEN_OFF, FoundXid, LogPlace, address, read

TOLD = [
    ("4,812,5522,-;NVRM: Xid (PCI:0000:05:00): 62, pid=123, name=python, 0000(0000)", 62, "0000:05:00"),
    (
        "3,9,5522,-,caller=T12;NVRM: Xid (PCI:0000:3B:00): 79, pid='<unknown>', GPU has fallen off the bus.",
        79,
        "0000:3b:00",
    ),
    ("4,9,1,-;NVRM: Xid (0000:03:00): 14, Channel 00000010", 14, "0000:03:00"),  # before R352
    ("4,9,1,-;NVRM: Xid (PCI:0001:00:00 GPU-I:05): 31, pid=7, name=python, MMU Fault", 31, "0001:00:00"),  # a MIG part
    ("4,9,1,-;NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  , Fatal, XC0 i0 Link 4", 149, "0018:01:00"),
    ("[Fri Aug 30 11:43:09 2024] NVRM: Xid (PCI:0000:cb:00): 13, Graphics SM Warp Exception", 13, "0000:cb:00"),
    ("3,9,1,-;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", FALLEN_OFF, "0000:3b:00"),
    ("3,9,1,-;NVRM: GPU at PCI:0000:3b:00.0 has fallen off the bus.", FALLEN_OFF, "0000:3b:00"),
    (
        "3,9,1,-;NVRM: The NVIDIA GPU 0000:b3:00.0\\x0a               NVRM: (PCI ID: 10de:26b5) installed in this "
        "system has\\x0a               NVRM: fallen off the bus and is not responding to commands.",
        FALLEN_OFF,
        "0000:b3:00",
    ),
]
SILENT = [
    "6,1,2,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01",
    "6,1,2,-;NVRM: GPU at PCI:0000:3b:00: GPU-52f37cd4-d92a-7b6d-2b9f-9ab862e27708",
    "6,1,2,-;pcieport 0000:00:01.0: a cable has fallen off the bus bar",
    " SUBSYSTEM=pci",
    " DEVICE=+pci:0000:3b:00.0",
    "",
]


@pytest.mark.parametrize(("line", "code", "pci"), TOLD)
def test_an_error_is_read_with_its_gpu(line: str, code: int, pci: str) -> None:
    _, found = read(LogPlace(), line)
    assert found is not None
    assert (found.code, found.pci) == (code, pci)
    assert found.text


@pytest.mark.parametrize("line", SILENT)
def test_other_lines_report_nothing(line: str) -> None:
    assert read(LogPlace(), line)[1] is None


def reported(lines: list[str]) -> list[FoundXid]:
    place, all_found = LogPlace(), []
    for line in lines:
        place, found = read(place, line)
        all_found += [found] if found else []
    return all_found


def test_a_loss_reported_in_three_records_is_of_the_gpu_named_first() -> None:
    lines = [
        "3,1,1,-;NVRM: The NVIDIA GPU 0000:b3:00.0",
        "3,2,1,-;NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "3,3,1,-;NVRM: fallen off the bus and is not responding to commands.",
    ]
    (found,) = reported(lines)
    assert (found.code, found.pci) == (FALLEN_OFF, "0000:b3:00")


def test_a_gpu_named_long_before_is_not_blamed() -> None:
    lines = ["3,1,1,-;NVRM: The NVIDIA GPU 0000:b3:00.0", *["6,2,1,-;eth0: up"] * 5, "3,3,1,-;NVRM: fallen off the bus"]
    (found,) = reported(lines)
    assert found.pci == ""


def test_the_place_is_the_highest_number() -> None:
    place = LogPlace()
    for line in ("6,7,1,-;a", "no number", "6,9,1,-;b", " DEVICE=x"):
        place, _ = read(place, line)
    assert place.sequence == 9


@pytest.mark.parametrize(
    "written", ["PCI:0000:3B:00", "00000000:3b:00.0", "0000:3b:00", "3b:00.0", "PCI:0000:3b:00 GPU-I:05"]
)
def test_one_gpu_has_one_address(written: str) -> None:
    assert address(written) == "0000:3b:00"


@given(st.lists(st.one_of(st.text(), st.sampled_from([line for line, _, _ in TOLD] + SILENT)), max_size=20))
def test_no_line_is_too_strange(lines: list[str]) -> None:
    for found in reported(lines):
        assert 0 <= found.code < 10_000
        assert len(found.text) <= 200
        assert "\n" not in found.text


def test_a_line_without_end_is_read_in_time() -> None:
    assert read(LogPlace(), "NVRM: Xid (" + "PCI:0000:" * 200_000)[1] is None
    assert read(LogPlace(), "NVRM: GPU " * 100_000)[1] is None
