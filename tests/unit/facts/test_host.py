from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from prime_train.core.machines import ADDRESSES, RANK, SECRET, Machines
from prime_train.facts import host
from prime_train.facts.facts import NotKnown
from prime_train.facts.machine import MachineLink


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_open_files_is_the_limit_of_this_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = host.open_files()
    assert limit.soft == soft
    assert limit.hard == (None if hard == resource.RLIM_INFINITY else hard)


@pytest.mark.parametrize(
    ("flags", "instruction"),
    [
        ("flags\t\t: fpu sse avx2 avx512_bf16", "avx512_bf16"),
        ("flags : fpu amx_bf16 avx512_bf16", "amx_bf16"),
        ("flags : fpu avx2", ""),
        ("Features : fp asimd bf16", ""),
        ("model name : avx512_bf16", ""),
    ],
)
def test_bf16_instruction(tmp_path: Path, flags: str, instruction: str) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor : 0\n{flags}\n\nprocessor : 1\n")
    assert host.cpu(cpuinfo, tmp_path).bf16_instruction == instruction


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_cores_within_the_quota(tmp_path: Path, files: dict[str, str], cores: int | None) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("")
    available = len(os.sched_getaffinity(0))
    assert host.cpu(cpuinfo, write(tmp_path, files)).cores == min(available, cores or available)


def test_ram_within_the_control_group(tmp_path: Path) -> None:
    whole = host.ram(tmp_path)
    assert 0 < whole.available_bytes <= whole.total_bytes
    limited = host.ram(
        write(
            tmp_path,
            {"memory.max": "1000000\n", "memory.current": "900000", "memory.stat": "anon 5\ninactive_file 300000"},
        )
    )
    assert (limited.total_bytes, limited.available_bytes) == (1_000_000, 400_000)


def test_ram_without_a_limit(tmp_path: Path) -> None:
    whole = host.ram(tmp_path / "nothing")
    unlimited = host.ram(write(tmp_path, {"memory.max": "max", "memory.current": "5"}))
    assert unlimited.total_bytes == whole.total_bytes
    version_1 = {"memory/memory.limit_in_bytes": str(2**63 - 4096), "memory/memory.usage_in_bytes": "5"}
    assert host.ram(write(tmp_path / "v1", version_1)).total_bytes == whole.total_bytes


def test_shared_memory(tmp_path: Path) -> None:
    found = host.shm(tmp_path)
    assert 0 < found.free_bytes <= found.total_bytes


def test_the_clock_and_what_it_cannot_be_before(tmp_path: Path) -> None:
    witness = tmp_path / "installed"
    witness.write_text("")
    os.utime(witness, (5.0, 5.0))
    found = host.clock(witness)
    assert found.not_before_unix_s == 5.0
    assert found.unix_s > 1_700_000_000


@pytest.mark.parametrize(("secret", "weakness"), [("", "it is not set"), ("0f1e2d3c4b5a6978", "")])
def test_the_machines_that_the_environment_names_are_known_and_not_their_secret(
    monkeypatch: pytest.MonkeyPatch, secret: str, weakness: str
) -> None:
    for name, value in Machines(1, ("10.0.0.1", "10.0.0.2"), 4000).variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(SECRET, secret)
    found = host.find_machine_link()
    assert found == MachineLink(1, ("10.0.0.1", "10.0.0.2"), 4000, weakness)
    assert not secret or secret not in repr(found)


def test_machines_that_contradict_each_other_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (RANK, ADDRESSES):
        monkeypatch.delenv(name, raising=False)
    assert host.find_machine_link() is None
    monkeypatch.setenv(ADDRESSES, "10.0.0.1,10.0.0.2")
    monkeypatch.setenv(RANK, "7")
    found = host.find_machine_link()
    assert isinstance(found, NotKnown)
    assert "names 2 machines" in found.reason
