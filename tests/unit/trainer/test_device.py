"""bf16 is taken where the processor has it and refused with the reason where it has not."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
import torch

from prime_train.core.errors import ExitCode, UserError
from prime_train.trainer import device
from prime_train.trainer.failure import describe

OLD_CPU = "processor\t: 0\nmodel name\t: AMD EPYC 7B13\nflags\t\t: fpu sse avx avx2 fma\n\nprocessor\t: 1\n"
PLAIN_AVX512 = OLD_CPU.replace("fma", "fma avx512f avx512bw")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def cpuinfo(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    return path


def test_auto_on_a_cpu_is_fp32(tmp_path: Path) -> None:
    picked = device.pick("auto", cpuinfo=cpuinfo(tmp_path, OLD_CPU.replace("fma", "avx512_bf16")))
    assert (picked.torch.type, picked.compute, picked.peak_flops) == ("cpu", "fp32", None)
    assert picked.name == "AMD EPYC 7B13"


@pytest.mark.parametrize("text", [OLD_CPU, PLAIN_AVX512, "", "flags:\n"])
def test_bf16_is_refused_where_it_would_be_emulated(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError) as caught:
        device.pick("bf16", cpuinfo=cpuinfo(tmp_path, text))
    assert caught.value.where == "precision.compute"
    assert "neither avx512_bf16 nor amx_bf16" in caught.value.what
    assert "5 to 40 times" in caught.value.why
    assert describe(caught.value, 1, 0)[1] == ExitCode.RUN_FAILED


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16"])
def test_bf16_is_taken_where_the_processor_has_it(tmp_path: Path, flag: str) -> None:
    picked = device.pick("bf16", cpuinfo=cpuinfo(tmp_path, OLD_CPU.replace("fma", flag)))
    assert picked.compute == "bf16"
    with picked.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


def test_a_missing_cpuinfo_is_no_reason_to_fail(tmp_path: Path) -> None:
    assert device.pick("fp32", cpuinfo=tmp_path / "none").name == "CPU"


def test_memory_has_a_peak() -> None:
    assert device.pick("fp32").peak_memory_gib() > 0.01


@pytest.mark.parametrize(
    ("compute", "capability", "has_flash"),
    [("auto", (9, 0), True), ("bf16", (8, 0), True), ("fp32", (9, 0), False), ("auto", (7, 0), False)],
)
def test_flash_attention_is_for_gpus_in_bf16(
    compute: Literal["auto", "bf16", "fp32"],
    capability: tuple[int, int],
    has_flash: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {
        "is_available": True,
        "device_count": 1,
        "set_device": None,
        "get_device_name": "NVIDIA H200",
        "get_device_capability": capability,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    picked = device.pick(compute)
    assert picked.torch.type == "cuda"
    assert picked.flash_attention == has_flash == (picked.compute == "bf16")


def test_a_cpu_has_no_flash_attention(tmp_path: Path) -> None:
    text = OLD_CPU.replace("fma", "avx512_bf16")
    assert not device.pick("bf16", cpuinfo=cpuinfo(tmp_path, text)).flash_attention
