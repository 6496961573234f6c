from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train import registry
from prime_train.dialects import native
from prime_train.facts import gather as gathering
from prime_train.facts.facts import NOT_ASKED, Cpu, Facts, Gpus, NotKnown, Packages, to_json
from prime_train.facts.gather import PROBES, gather
from prime_train.facts.gpus import gpus
from prime_train.facts.packages import TRAIN, packages
from prime_train.rules.judge import needs
from prime_train.spec import RunSpec


def quickstart() -> RunSpec:
    run = native.read(registry.presets()["quickstart"].read_text(), "quickstart").run
    assert run is not None
    return run


def test_what_is_asked_for_is_gathered_and_nothing_else(tmp_path: Path) -> None:
    facts = gather(quickstart(), tmp_path / "run", ["cpu", "save_dir"])
    assert isinstance(facts.cpu, Cpu)
    assert facts.ram is NOT_ASKED
    assert list(tmp_path.iterdir()) == []


def test_everything_that_rules_need_is_known_here_or_says_why(tmp_path: Path) -> None:
    facts = gather(quickstart(), tmp_path / "run", needs())
    document = json.loads(json.dumps(to_json(facts)))
    assert set(document) == set(PROBES)
    assert document["model_folder"] is None
    assert document["save_dir"]["path"] == str(tmp_path / "run")


def test_a_probe_that_fails_leaves_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gathering.PROBES, "cpu", lambda _run, _dir: (tmp_path / "gone").read_text())
    facts = gather(quickstart(), tmp_path, ["cpu"])
    assert facts.cpu == NotKnown("cpu could not be read: No such file or directory")
    assert to_json(facts)["cpu"] == {"not_known": "cpu could not be read: No such file or directory"}


def test_packages_names_those_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert packages() == Packages(tuple(name for name in TRAIN if name in packages().missing))
    monkeypatch.setattr("prime_train.facts.packages.TRAIN", ("json", "no_such_package_here"))
    assert packages().missing == ("no_such_package_here",)


def test_gathering_imports_no_torch() -> None:
    program = (
        "import sys; from pathlib import Path; from tests.facts.test_gather import quickstart; "
        "from prime_train.facts.gather import PROBES, gather; gather(quickstart(), Path('/nowhere'), PROBES); "
        "assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# --- GPUs ----------------------------------------------------------------------------------------

# Two GPUs behind the names that nvidia-ml-py looks up in libnvidia-ml.so.1. Source: nvml.h, version 13.
FAKE_NVML = """
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
static int devices[2];
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "fake"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = &devices[index]; return 0; }
int nvmlDeviceGetName(void *handle, char *name, unsigned length) { strncpy(name, "NVIDIA H200", length); return 0; }
int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) { memory->total = 1000; return 0; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) {
    strncpy(uuid, handle == &devices[0] ? "GPU-aaaa" : "GPU-bbbb", length);
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler for the stand-in of NVML")
@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 2), ("", 0), ("-1", 0), ("0", 1), ("1,0", 2), ("0,7,1", 1), ("GPU-bb", 1), ("GPU-cc,0", 0)],
)
def test_gpus_that_are_visible(tmp_path: Path, visible: str | None, count: int) -> None:
    source = tmp_path / "nvml.c"
    source.write_text(FAKE_NVML)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", tmp_path / "libnvidia-ml.so.1", source], check=True)
    program = "from prime_train.facts.gpus import gpus; found = gpus(); print([gpu.name for gpu in found.devices])"
    environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    environment |= {"LD_LIBRARY_PATH": str(tmp_path)} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(["NVIDIA H200"] * count)


def test_hidden_gpus_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus() == Gpus((), "CUDA_VISIBLE_DEVICES hides them")


def test_facts_of_nobody_are_all_unasked() -> None:
    assert all(value == {"not_known": "not asked for"} for value in to_json(Facts()).values())
