from __future__ import annotations

import pytest

from prime_train.prices.catalogues import VAST_NAMES
from prime_train.registry import gpus
from prime_train.registry.gpus import gpu_id, gpu_id_of_offer


@pytest.mark.parametrize(
    ("name", "form", "memory_gb", "meant"),
    [
        ("A100", "", None, "a100-40gb"),
        ("A100-80GB", "", None, "a100-80gb"),
        ("A100_80GB", "PCIe", 80, "a100-80gb-pcie"),
        ("A100 SXM4", "", 40, "a100-40gb"),
        ("A100 PCIE", "", 80, "a100-80gb-pcie"),
        ("H100", "", None, "h100-80gb"),
        ("H100_80GB", "PCIe", None, "h100-80gb-pcie"),
        ("H100_80GB", "SXM5", None, "h100-80gb"),
        ("H100 NVL", "", 94, "h100-nvl"),
        ("H100-MEGA-80GB", "", None, "h100-80gb"),
        ("H200_141GB", "", None, "h200"),
        ("B200_180GB", "SXM6", None, "b200"),
        ("RTX4090_24GB", "PCIe", None, "rtx-4090"),
        ("RTX 4090", "", 23.99, "rtx-4090"),
        ("A6000_48GB", "", None, "rtx-a6000"),
        ("RTX6000Ada_48GB", "", None, "rtx-6000-ada"),
        ("RTX 6000Ada", "", 48, "rtx-6000-ada"),
        ("RTX PRO 6000 WS", "", 96, "rtx-pro-6000"),
        ("NVIDIA H100 80GB HBM3", "", None, "h100-80gb"),
        ("Tesla T4", "", None, "t4"),
        ("V100", "", 16, "v100-16gb"),
        ("V100", "", 32, "v100-32gb"),
        ("A40", "", 48, "a40"),
        ("RTX 4080", "", 16, "rtx-4080"),
    ],
)
def test_names_of_clouds(name: str, form: str, memory_gb: float | None, meant: str) -> None:
    assert gpu_id(name, form, memory_gb) == meant


@pytest.mark.parametrize(
    ("name", "memory_gb"),
    [("RTX 4090", 48), ("H200 NVL", 141), ("V100", 24), ("RTX3070", 8), ("H100", 40), ("", None), ("TPU-v5e", None)],
)
def test_a_card_that_only_resembles_one_is_none(name: str, memory_gb: float | None) -> None:
    assert gpu_id(name, "", memory_gb) is None


def test_the_memory_reported_may_be_that_of_all_gpus() -> None:
    assert gpu_id_of_offer("H100", "", 640, 8) == "h100-80gb"
    assert gpu_id_of_offer("H100", "", 80, 8) == "h100-80gb"
    assert gpu_id_of_offer("H100 NVL", "", 187.2, 2) == "h100-nvl"
    assert gpu_id_of_offer("RTX4090", "", 98, 2) is None  # two of 49 GB: not the card that is sold


def test_a_memory_in_another_unit_states_nothing() -> None:
    assert gpu_id_of_offer("A100-80GB", "A100 PCIe", 0.08, 1) == "a100-80gb-pcie"  # RunPod writes 80 where MiB belong


@pytest.mark.parametrize("name", VAST_NAMES)
def test_every_name_that_vast_is_asked_for_is_known(name: str) -> None:
    assert gpu_id(name.replace("_", " ")) is not None


@pytest.mark.parametrize("gpu", [gpu.id for gpu in gpus.gpu_peaks()])
def test_an_id_is_its_own_name(gpu: str) -> None:
    assert gpu_id(gpu) == gpu
