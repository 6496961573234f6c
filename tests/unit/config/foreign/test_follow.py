"""A config points to other files: they are read beside it, and each finding names its own file."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.config import detect
from prime_train.rules.judge import judge

AXOLOTL = "base_model: m\nadapter: lora\ndatasets: [{path: d}]\nsequence_len: 2048\nmicro_batch_size: 1\n"
BOTH = '{\n"zero_optimization": {"stage": 2},\n"fp16": {"enabled": true}, "bf16": {"enabled": true}\n}\n'


def _lint(path: Path, text: str) -> list[tuple[str, str, int]]:
    path.write_text(text, encoding="utf-8")
    found = judge(detect.read(text, str(path))).findings
    return [
        (one.code, Path(one.path).name, one.span.line) for one in found if one.code.startswith(("DSP", "CFG", "IGN"))
    ]


def test_a_file_beside_the_config_is_judged_with_it(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(BOTH, encoding="utf-8")
    assert _lint(tmp_path / "a.yaml", f"{AXOLOTL}deepspeed: ds.json\n") == [("DSP001", "ds.json", 3)]


def test_a_path_may_be_relative_to_a_folder_above(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "train").mkdir()
    (tmp_path / "configs" / "ds.json").write_text(BOTH, encoding="utf-8")
    assert _lint(tmp_path / "train" / "a.yaml", f"{AXOLOTL}deepspeed: configs/ds.json\n") == [("DSP001", "ds.json", 3)]


def test_a_table_in_the_place_of_a_path_is_a_part(tmp_path: Path) -> None:
    table = "  zero_optimization: {stage: 2}\n  fp16: {enabled: true}\n  bf16: {enabled: true}\n"
    text = f"{AXOLOTL}deepspeed:\n{table}"
    assert _lint(tmp_path / "a.yaml", text) == [("DSP001", "a.yaml", 8)]


_OPEN = ["absent.json", "$DS", "{{ ds }}", "../../../../../etc/shadow", ".", "https://x/ds.json", "auto"]


@pytest.mark.parametrize("name", _OPEN)
def test_a_path_that_cannot_be_followed_is_left_open(tmp_path: Path, name: str) -> None:
    assert _lint(tmp_path / "a.yaml", f"{AXOLOTL}deepspeed: '{name}'\n") == []


def test_a_file_that_cannot_be_read_has_its_own_fault(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}\n"fp16": 1}', encoding="utf-8")
    assert _lint(tmp_path / "a.yaml", f"{AXOLOTL}deepspeed: ds.json\n") == [("CFG001", "ds.json", 2)]


def test_files_that_point_to_each_other_end(tmp_path: Path) -> None:
    accelerate = "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {deepspeed_config_file: a.yaml}\n"
    assert _lint(tmp_path / "a.yaml", accelerate) == []


def test_a_comment_silences_in_the_file_where_it_stands(tmp_path: Path) -> None:
    comment = "# prime-train: ignore[DSP001]"
    (tmp_path / "ds.json").write_text(BOTH.replace('"bf16"', f"{comment}\n" + '"bf16"'), encoding="utf-8")
    assert _lint(tmp_path / "a.yaml", f"{AXOLOTL}deepspeed: ds.json\n") == []
    unused = comment.replace("DSP001", "YML001")
    assert _lint(tmp_path / "a.yaml", f"{unused}\n{AXOLOTL}") == [("IGN001", "a.yaml", 1)]


def test_a_toml_file_that_a_command_names_is_read_as_toml(tmp_path: Path) -> None:
    toml = '[job]\ndump_folder = "o"\n[training]\nseq_len = 8\n[checkpoint]\nkeep_latest_k = 1\n'
    (tmp_path / "x.toml").write_text(toml, encoding="utf-8")
    script = "torchrun --nproc_per_node 4 -m torchtitan.train --job.config_file x.toml\n"
    (tmp_path / "job.sh").write_text(script, encoding="utf-8")
    found = judge(detect.read(script, str(tmp_path / "job.sh"))).findings
    assert ("TTI014", "x.toml", 6) in [(one.code, Path(one.path).name, one.span.line) for one in found]
    assert not [one for one in found if one.code == "CFG001"]
