from __future__ import annotations

import pytest

from prime_train.core.errors import UserError
from prime_train.core.units import GIB
from prime_train.estimate.hardware import (
    GpuNumbers,
    hardware_from_devices,
    hardware_from_name,
    hardware_from_numbers,
)
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


def test_an_unknown_gpu_makes_no_hardware() -> None:
    assert hardware_from_devices([("A GPU of tomorrow", 80 * GIB)]) is None
    assert hardware_from_devices([]) is None


def test_every_gpu_of_the_registry_is_found_by_its_id() -> None:
    for gpu in gpus.gpu_peaks():
        assert hardware_from_name(f"8x{gpu.id}").usable_bytes <= gpu.memory_gb * GIB


@pytest.mark.parametrize("asked", ["rtx-409", "8xrtx-409", "a4", "h2O"])
def test_the_fix_repeats_the_count_that_was_given(asked: str) -> None:
    with pytest.raises(UserError) as refused:
        hardware_from_name(asked)
    assert ("8x" in refused.value.fix) == asked.startswith("8x")


@pytest.mark.parametrize(
    ("name", "capability"),
    [
        ("h20", (9, 0)),
        ("a40", (8, 6)),
        ("gb10", (12, 1)),
        ("rtx-4080", (8, 9)),
        ("v100-16gb", (7, 0)),
        ("mi300x", None),
    ],
)
def test_gpus_that_were_missing_are_in_the_registry(name: str, capability: tuple[int, int] | None) -> None:
    assert hardware_from_name(name).compute_capability == capability
    entry = next(gpu for gpu in gpus.gpu_peaks() if gpu.id == name)
    assert entry.is_looked_up


@pytest.mark.parametrize(
    ("device", "gpu"),
    [
        ("NVIDIA H20", "h20"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA GB10", "gb10"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("NVIDIA GeForce RTX 4080", "rtx-4080"),
    ],
)
def test_a_device_is_found_by_the_name_of_its_driver(device: str, gpu: str) -> None:
    found = hardware_from_devices([(device, 10 * GIB)])
    assert found is not None
    assert found.id == gpu


def test_any_gpu_is_described_by_two_numbers() -> None:
    hardware = hardware_from_numbers("8xmi250", GpuNumbers(127.5, 362.1))
    assert (hardware.id, hardware.gpus) == ("mi250", 8)
    assert hardware.usable_bytes == 127.5 * GIB
    assert hardware.peak_flops_bf16 == pytest.approx(362.1e12)
    assert 3e11 < hardware.bandwidth_bytes_per_s < 6e12
    assert "bandwidth" in hardware.assumed
    assert hardware_from_numbers(None, GpuNumbers(24, 100)).gpus == 1


def test_numbers_replace_those_of_a_known_gpu() -> None:
    hardware = hardware_from_numbers("2xh100-80gb", GpuNumbers(94.0, 900.0))
    known = hardware_from_name("2xh100-80gb")
    assert hardware.usable_bytes == 94.0 * GIB
    assert (
        hardware._replace(usable_bytes=known.usable_bytes, peak_flops_bf16=known.peak_flops_bf16, assumed="") == known
    )


@pytest.mark.parametrize(
    "numbers", [GpuNumbers(0, 100), GpuNumbers(-1, 1), GpuNumbers(float("nan"), 1), GpuNumbers(80, 1e15)]
)
def test_numbers_that_no_gpu_has_are_refused(numbers: GpuNumbers) -> None:
    with pytest.raises(UserError, match="one GPU has") as refused:
        hardware_from_numbers(None, numbers)
    assert refused.value.where.startswith("--gpu-")
