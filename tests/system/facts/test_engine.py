"""vLLM, started for a look: a stand-in that starts or fails, and the lines that the real one fails with."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.facts import trials
from prime_train.facts.facts import EngineStart, NotKnown
from prime_train.facts.gather import ProbeOptions, gather
from prime_train.spec.prime_rl_parts import Inference
from tests.system.facts.test_gather import quickstart

STANDIN = Path(__file__).parents[2] / "fakes" / "vllm_standin"


@pytest.fixture(autouse=True)
def _standin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(STANDIN))


def start(monkeypatch: pytest.MonkeyPatch, said: str, deadline_s: float = 30.0) -> EngineStart:
    monkeypatch.setenv("FAKE_VLLM", said)
    answer = trials.start(sys.executable, ["--model", "lab/model"], deadline_s)
    assert isinstance(answer, EngineStart), answer
    return answer


def test_one_that_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start(monkeypatch, "ready").failure == ""


def test_one_that_fails_is_reported_by_its_first_error(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "ValueError: Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired"
    found = start(monkeypatch, said)
    assert found.failure == "memory"
    assert found.line == said


def test_one_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "_GRACE_S", 0.2)
    assert start(monkeypatch, "hang", deadline_s=1.0).failure == "timeout"


# Lines of vLLM 0.32.
@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("OSError: [Errno 98] Address already in use", "port"),
        ("RuntimeError: operator torchvision::nms does not exist", "environment"),
        ("importlib.metadata.PackageNotFoundError: No package metadata was found for vllm", "environment"),
        ("ImportError: libcudart.so.13: cannot open shared object file", "environment"),
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 12040)", "driver"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "memory"),
        ("ValueError: To serve at least one request with the model's max seq len, 1 GiB KV cache is needed", "memory"),
        ("ValueError: No available memory for the cache blocks.", "memory"),
        ("huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot", "model"),
        ("pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig", "config"),
        ("api_server.py: error: unrecognized arguments: --max-modell-len 5", "config"),
        ("KeyError: 'no such parser'", "other"),
    ],
)
def test_the_class_of_a_failure(line: str, failure: str) -> None:
    log = f"INFO 11-21 all is well\n(Worker pid=1) ERROR 11-21 [core.py:1]     raise ValueError(\nERROR {line}\nnoise\n"
    assert trials.classify(log)[0] == failure


def test_a_log_without_an_error() -> None:
    assert trials.classify("INFO all is well\n") == ("other", "it ended without an error message")


def test_it_is_started_for_a_run_that_has_one_and_only_in_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_VLLM", "ready")
    run = replace(
        quickstart(), inference=Inference(model_name="lab/model", ctx_tokens=512, enable_lora=True), format="prime-rl"
    )
    assert gather(run, tmp_path, ["engine"]).engine == NotKnown("only --deep probes it")
    found = gather(run, tmp_path, ["engine"], ProbeOptions(deep=True)).engine
    assert isinstance(found, EngineStart)
    assert found.failure == ""
    monkeypatch.delenv("PYTHONPATH")
    found = gather(run, tmp_path, ["engine"], ProbeOptions(deep=True)).engine
    assert found == EngineStart("environment", f"{sys.executable} has no vLLM", 0.0)
