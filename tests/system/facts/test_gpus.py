"""GPUs, asked of a stand-in of the driver's library that nvidia-ml-py loads like the real one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from prime_train.core.errors import UserError
from prime_train.facts.facts import NotKnown
from prime_train.facts.host import gpus, parse_gpus
from prime_train.facts.machine import Gpu, VisibleGpus

SOURCE = Path(__file__).parents[2] / "fakes" / "nvml.c"
Driver = Callable[..., None]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler for the stand-in of the driver")
    folder = tmp_path_factory.mktemp("driver")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", SOURCE], check=True)
    return folder


@pytest.fixture
def driver(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Says what the driver is to say: `driver(used=5)`."""
    state = tmp_path / "driver.txt"

    def set_values(**values: int) -> None:
        state.write_text("".join(f"{name} {value}\n" for name, value in values.items()))

    set_values()
    monkeypatch.setenv("FAKE_NVML", str(state))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return set_values


def found() -> VisibleGpus:
    answer = gpus()
    assert isinstance(answer, VisibleGpus), answer
    return answer


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 2), ("", 0), ("-1", 0), ("0", 1), ("1,0", 2), ("0,7,1", 1), ("GPU-bb", 1), ("GPU-cc,0", 0)],
)
@pytest.mark.usefixtures("driver")
def test_gpus_that_are_visible(monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.name for gpu in found().devices] == ["NVIDIA H200"] * count


def test_what_a_gpu_is_and_who_uses_it(driver: Driver) -> None:
    driver(count=1, capability=89, cuda=12080, used=7 * 2**30, user=os.getpid())
    answer = found()
    (gpu,) = answer.devices
    assert (answer.driver, answer.driver_cuda) == ("580.95.05", (12, 8))
    assert gpu.compute_capability == (8, 9)
    assert gpu.used_bytes == 7 * 2**30
    (user,) = gpu.users
    assert user.pid == os.getpid()
    assert user.name == Path("/proc/self/comm").read_text().strip()


def test_an_old_driver_has_an_older_list_of_users(driver: Driver) -> None:
    driver(count=1, used=2**30, user=2**22 + 1, old=1)
    (user,) = found().devices[0].users
    assert (user.pid, user.name) == (2**22 + 1, "")


def test_a_gpu_that_is_lost_leaves_the_others_known(driver: Driver) -> None:
    driver(lost=2)
    well, lost = found().devices
    assert well.fault == ""
    assert lost == Gpu("", 0, (0, 0), fault="GPU is lost")


def test_a_driver_that_is_wedged_holds_a_child_only(driver: Driver) -> None:
    driver(hang=1)
    answer = gpus(deadline_s=1.0)
    assert isinstance(answer, NotKnown)
    assert "no answer within 1 s" in answer.reason


@pytest.mark.parametrize(("code", "expected"), [(9, VisibleGpus((), "no NVIDIA driver")), (18, NotKnown)])
def test_a_driver_that_does_not_start(driver: Driver, code: int, expected: object) -> None:
    driver(init=code)
    answer = gpus()
    assert answer == expected or (expected is NotKnown and isinstance(answer, NotKnown))


def test_hidden_gpus_report_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus() == VisibleGpus((), "CUDA_VISIBLE_DEVICES hides them")


@pytest.mark.parametrize(
    ("asked", "count", "capability"), [("8xh100-80gb", 8, (9, 0)), ("L4", 1, (8, 9)), ("2xb200", 2, (10, 0))]
)
def test_gpus_of_another_machine(asked: str, count: int, capability: tuple[int, int]) -> None:
    machine = parse_gpus(asked)
    assert len(machine.devices) == count
    assert {gpu.compute_capability for gpu in machine.devices} == {capability}
    assert machine.devices[0].memory_bytes > 2**34


@pytest.mark.parametrize("asked", ["", "8x", "0xh200", "h3000", "8 x h200", "mi300x", "-1xh200"])
def test_unknown_gpus(asked: str) -> None:
    with pytest.raises(UserError, match="h100-80gb"):
        parse_gpus(asked)
