"""Rules on SkyPilot tasks: any values are judged without an exception, and what keeps itself is left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.config import detect
from prime_train.rules.judge import judge

_TEXTS = st.sampled_from(
    ["", "/data", "./here", "s3://a/b", "$X", "MOUNT", "copy", "python train.py --out /data/x", "torchrun a.py"]
)
_LEAVES = st.none() | st.booleans() | st.integers(-2, 300) | _TEXTS
_VALUES = st.recursive(_LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXTS, inner, max_size=3))
_MOUNT = st.fixed_dictionaries({}, optional={"name": _VALUES, "source": _VALUES, "mode": _VALUES})
_RESOURCES = {"use_spot": _VALUES, "any_of": _VALUES, "disk_size": _VALUES}
_OPTIONAL = dict.fromkeys(("num_nodes", "envs", "secrets", "workdir", "setup", "volumes"), _VALUES)
_MOUNTS = _VALUES | st.dictionaries(_TEXTS, _MOUNT | _VALUES, max_size=3)
_TASK = st.fixed_dictionaries(
    {"run": _TEXTS, "resources": st.fixed_dictionaries({"cpus": st.just(4)}, optional=_RESOURCES)},
    optional=_OPTIONAL | {"file_mounts": _MOUNTS},
)
_SPOT = "resources: {accelerators: H100:8, use_spot: true}\n"


def _codes(text: str, folder: str = "/nowhere") -> set[str]:
    return {one.code for one in judge(detect.read(text, f"{folder}/task.yaml")).findings}


@given(_TASK)
def test_any_task_is_judged(task: dict[str, Any]) -> None:
    assert {code[:3] for code in _codes(json.dumps(task))} <= {"SKT", "SEC", "TRU", "YML", "HFT"}


@pytest.mark.parametrize(
    "more",
    [
        "run: python train.py && aws s3 sync out s3://a/b\n",
        "run: python train.py --push_to_hub\n",
        "run: python serve.py\n",
        "volumes: {/data: a-volume}\nrun: python train.py\n",
        "service: {port: 80}\nrun: python train.py\n",
        "file_mounts: {/out: {name: a, mode: $MODE}}\nrun: python train.py\n",
    ],
    ids=["uploads", "pushes", "trains nothing", "a volume", "a service", "a mode that is open"],
)
def test_what_keeps_itself_needs_no_bucket(more: str) -> None:
    assert "SKT004" not in _codes(_SPOT + more)


def test_a_mount_beside_the_task_is_found(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    text = f"{_SPOT}file_mounts: {{/data: ./data}}\nrun: echo\n"
    assert "SKT001" not in _codes(text, str(tmp_path))
    assert "SKT001" in _codes(text.replace("./data", "./date"), str(tmp_path))
