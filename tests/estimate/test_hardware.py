from __future__ import annotations

import pytest

from prime_train.core.errors import UserError
from prime_train.core.units import GIB
from prime_train.estimate.hardware import hardware_from_devices, hardware_from_name
from prime_train.registry import gpus


@pytest.mark.parametrize(
    ("asked", "gpu", "count"),
    [
        ("8xh100-80gb", "h100-80gb", 8),
        ("H200", "h200", 1),
        ("4 x rtx4090", "rtx-4090", 4),
        ("2xRTX_A6000", "rtx-a6000", 2),
        ("16xmi300x", "mi300x", 16),
    ],
)
def test_a_count_and_a_gpu(asked: str, gpu: str, count: int) -> None:
    hardware = hardware_from_name(asked)
    assert (hardware.id, hardware.gpus) == (gpu, count)
    assert hardware.usable_bytes > 10 * GIB
    assert hardware.peak_flops_bf16 > 1e13


@pytest.mark.parametrize(
    ("asked", "fix"),
    [
        ("8xh100", "h100-80gb"),
        ("8xh10-80gb", "h100-80gb"),
        ("a100-80gbs", "a100-80gb"),
        ("8x", "8xh100-80gb"),
        ("", "8xh100-80gb"),
        ("zebra", "8xh100-80gb"),
        ("0xh200", "h200"),
        ("999999999xh200", "h200"),
    ],
)
def test_any_other_is_refused_with_the_nearest(asked: str, fix: str) -> None:
    with pytest.raises(UserError) as refused:
        hardware_from_name(asked)
    assert fix in refused.value.fix


def test_the_smallest_gpu_of_a_mixed_machine_counts() -> None:
    mixed = hardware_from_devices([("NVIDIA H100 80GB HBM3", 80 * GIB), ("NVIDIA A10G", 23 * GIB)])
    assert mixed is not None
    assert (mixed.id, mixed.gpus) == ("a10g", 2)
    assert mixed.usable_bytes <= 23 * GIB


def test_a_gpu_that_nobody_knows_makes_no_hardware() -> None:
    assert hardware_from_devices([("A GPU of tomorrow", 80 * GIB)]) is None
    assert hardware_from_devices([]) is None


def test_every_gpu_of_the_registry_is_found_by_its_id() -> None:
    for gpu in gpus.gpu_peaks():
        assert hardware_from_name(f"8x{gpu.id}").usable_bytes <= gpu.memory_gb * GIB
