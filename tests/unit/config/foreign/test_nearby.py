"""A script sources and starts others: they are read with it, and each finding names its own file and line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from prime_train.config import detect
from prime_train.config.foreign.scripts import read_parts
from prime_train.config.foreign.values import Open
from prime_train.core.errors import UserError
from prime_train.rules.judge import compare, judge

TRAIN = (
    "torchrun --nproc_per_node ${N:-4} train.py --per_device_train_batch_size $1 --output_dir o --bf16 True --lr $LR\n"
)
ENV = """export LR=3 N=2
start() {
  torchrun --nproc_per_node $N train.py --output_dir o --per_device_train_batch_size "$@" --lr $LR
}
"""
BOTH = "torchrun train.py --per_device_train_batch_size 1 --output_dir o --fp16 True --bf16 True\n"


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _launch(folder: Path, files: Mapping[str, str], name: str = "job.sh") -> tuple[object, object, object]:
    """Processes, batch and learning rate of the only training that a script starts."""
    _write(folder, files)
    parts = read_parts(files[name], str(folder / name), follows=True)
    (launch,) = (part.values for part in parts if part.format == "launch")
    (flags,) = (part.values for part in parts if part.format == "hf")
    return launch["nproc"], flags["per_device_train_batch_size"], flags["lr"]


def _lint(folder: Path, name: str) -> list[tuple[str, str, int]]:
    text = (folder / name).read_text(encoding="utf-8")
    found = judge(detect.read(text, str(folder / name))).findings
    return [(one.code, Path(one.path).name, one.span.line) for one in found]


@pytest.mark.parametrize(
    ("script", "known"),
    [
        ("export LR=2\nbash train.sh 8", (4, 8, 2)),
        ("export LR=2 N=6\nexec ./train.sh 8 &", (6, 8, 2)),
        ("LR=2 nohup sh -eux train.sh 8 > log", (4, 8, 2)),
        ("LR=2\nbash train.sh 8", (4, 8, Open("$LR"))),  # not exported
        ("export LR=$(cat lr)\nbash train.sh 8", (4, 8, Open("$(cat lr)"))),
        ("source env.sh\nbash train.sh 8", (2, 8, 3)),
        ("export LR=1\n. ./env.sh\nbash train.sh $LR", (2, 3, 3)),
        ("source env.sh\nstart 8", (2, 8, 3)),
        ('HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\n. "$HERE/env.sh"\nstart 8', (2, 8, 3)),
        ('cd "$(dirname "$0")"\nsource env.sh\nbash train.sh 8', (2, 8, 3)),
        ("export LR=2\nfor i in 1 2; do bash train.sh $i; done", (4, Open("$1"), 2)),
    ],
)
def test_what_a_script_gives_to_another(script: str, known: tuple[object, ...], tmp_path: Path) -> None:
    assert _launch(tmp_path, {"train.sh": TRAIN, "env.sh": ENV, "job.sh": script}) == known


@pytest.mark.parametrize(
    "script",
    [
        "cd /elsewhere\nbash train.sh 8",
        "bash $WHERE/train.sh 8",
        "bash -c train.sh",
        "bash ../train.sh 8",
        "bash absent.sh 8",
        "bash folder.sh 8",
        "bash link.sh",
        "cat train.sh",
        "echo bash train.sh",
        "scp train.sh host:",
    ],
)
def test_a_script_that_may_be_another_one_is_not_read(script: str, tmp_path: Path) -> None:
    _write(tmp_path, {"train.sh": BOTH, "in/train.sh": BOTH, "in/job.sh": script})
    (tmp_path / "in" / "folder.sh").mkdir()
    (tmp_path / "in" / "link.sh").symlink_to(tmp_path / "train.sh")
    assert read_parts(script, str(tmp_path / "in" / "job.sh"), follows=True) == ()


def test_findings_name_the_file_and_line(tmp_path: Path) -> None:
    ds = '{"zero_optimization": {"stage": 2},\n"fp16": {"enabled": true}, "bf16": {"enabled": true}}\n'
    job = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=8\nbash train.sh\n"
    train = (
        "\n\ntorchrun --nnodes 2 --nproc_per_node 8 --rdzv_endpoint $HEAD:29500 --rdzv_backend c10d train.py \\\n"
        "  --per_device_train_batch_size 1 --output_dir o --bf16 True --deepspeed ds.json\n"
    )
    _write(tmp_path, {"job.sh": job, "train.sh": train, "ds.json": ds, "submit.sh": "sbatch --nodes=1 job.sh\n"})
    assert {("SLU001", "train.sh", 3), ("DSP001", "ds.json", 2)} <= set(_lint(tmp_path, "job.sh"))
    submitted = _lint(tmp_path, "submit.sh")
    assert ("DSP001", "ds.json", 2) in submitted
    assert "SLU001" not in [code for code, _, _ in submitted]  # a flag of sbatch overrules the directive


def test_a_job_starts_a_script_on_every_node(tmp_path: Path) -> None:
    job = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=8\nsrun bash train.sh\n"
    train = (
        "torchrun --nnodes 2 --nproc_per_node 8 --rdzv_endpoint $HEAD:29500 --rdzv_backend c10d train.py "
        "--per_device_train_batch_size 1 --output_dir o --bf16 True\n"
    )
    _write(tmp_path, {"job.sh": job, "train.sh": train})
    assert "SLU001" not in [code for code, _, _ in _lint(tmp_path, "job.sh")]


def test_scripts_that_start_each_other_end(tmp_path: Path) -> None:
    loop = "bash {0}.sh\nsource {0}.sh\n./{0}.sh\n"
    _write(tmp_path, {"a.sh": loop.format("b") + BOTH, "b.sh": loop.format("a") + loop.format("b")})
    assert [line for code, _, line in _lint(tmp_path, "a.sh") if code == "HFT004"] == [4]
    many = {f"s{n}.sh": f"bash s{n + 1}.sh\nsource s{n + 1}.sh\n" for n in range(40)}
    _write(tmp_path, {**many, "s40.sh": BOTH})
    with pytest.raises(UserError, match="no training command that is known here"):
        _lint(tmp_path, "s0.sh")


def test_a_finding_of_two_files_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _write(tmp_path, {"a/job.sh": "bash train.sh\n", "a/other.sh": "bash train.sh\n", "a/train.sh": BOTH})
    names = ("a/job.sh", "a/other.sh", "a/train.sh")
    readings = (detect.read(Path(name).read_text(encoding="utf-8"), name) for name in names)
    found = [[one for one in verdict.findings if one.code == "HFT004"] for verdict in compare(map(judge, readings))]
    assert list(map(len, found)) == [0, 0, 1]
