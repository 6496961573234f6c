"""`prime-train lint axolotl.yaml`: configs of other programs are found, judged and fixed; other files are left."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from prime_train.cli.lint.files import check
from prime_train.cli.lint.fix import Repair
from prime_train.cli.lint.search import configs_among
from prime_train.cli.run.preflight import Command, check_config
from prime_train.core.errors import UserError

BAD = """\
# eight GPUs of two machines
distributed_type: MULTI_GPU
num_machines: 2
num_processes: 1  # the others are broken
main_process_ip: 10.0.0.1
main_process_port: 29500
"""
DEEPSPEED = '{\n  "zero_optimization": {"stage": 2},\n  "fp16": {"enabled": true},\n  "bf16": {"enabled": true}\n}\n'
FILES = {
    "train/bad.yaml": BAD,
    "train/good.yml": BAD.replace("es: 1 ", "es: 16 "),
    "train/ds.json": DEEPSPEED,
    "compose.yaml": "services: {web: {image: nginx}}\n",
    "package.json": '{"name": "a", "version": "1", "scripts": {}}\n',
    "plain.sh": "#!/bin/sh\necho distributed_type\n",
    "broken.yaml": "distributed: type: x\n",
    "template.yaml": "resources:\n  cloud: aws\nrun: {{ command }}\nsetup: pip install\n",
    "data.json": json.dumps([{"zero_optimization": "x" * 1000}] * 1100),
}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")


def test_a_finding_stands_at_its_line_with_four_parts() -> None:
    output, ok = check(["train/bad.yaml"])
    assert not ok
    assert output.startswith("error[ACC006] train/bad.yaml:4:1  num_processes = 1\n")
    assert all(f"\n  {label:<4}  " in output for label in ("what", "why", "fix"))
    document = json.loads(check(["train/bad.yaml"], output_format="json")[0])["files"][0]
    assert (document["dialect"], document["generation"]) == ("accelerate", None)


def test_a_folder_is_searched_for_configs_of_other_programs() -> None:
    output, _ = check([], output_format="json")
    assert [file["path"] for file in json.loads(output)["files"]] == [
        "train/bad.yaml",
        "train/ds.json",
        "train/good.yml",
    ]


def test_standard_input_may_be_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BAD.encode())))
    assert check(["-"], output_format="concise")[0].startswith("<stdin>:4:1: error[ACC006]")


def test_a_hook_leaves_files_of_other_kinds_alone() -> None:
    assert configs_among(sorted(FILES)) == ["train/bad.yaml", "train/ds.json", "train/good.yml"]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("compose.yaml", "it is a compose file of Docker, and no format that is known here"),
        ("package.json", "it is the package file of a JavaScript project, and no format that is known here"),
        ("plain.sh", "no training command that is known here is in the shell script"),
        ("data.json", "it has 1129700 characters, and a config has fewer than 1000000"),
        ("broken.yaml", "it is of no format that is known here, and cannot be read as YAML or JSON: a second colon"),
        ("template.yaml", "it is a template, and no format that is known here"),
    ],
)
def test_a_file_of_another_kind_is_refused_where_it_is_named(name: str, what: str) -> None:
    with pytest.raises(UserError) as refused:
        check([name])
    assert refused.value.what.startswith(what)
    assert refused.value.where.partition(":")[0] == name
    assert refused.value.exit_code == 2


def test_a_fix_keeps_comments_and_what_it_does_not_change() -> None:
    output, ok = check(["train/ds.json"], repair=Repair(write=True, unsafe=True))
    assert ok, output
    after = Path("train/ds.json").read_text(encoding="utf-8")
    assert after == DEEPSPEED.replace('"fp16": {"enabled": true}', '"fp16": {"enabled": false}')


def test_a_yaml_file_is_not_merged_with_another() -> None:
    with pytest.raises(UserError, match="only TOML files can be merged"):
        check(["train/bad.yaml", "+", "train/good.yml"])


def test_a_command_that_needs_a_run_names_the_program_of_the_config() -> None:
    with pytest.raises(UserError, match="a config of accelerate"):
        check_config(Command("train/good.yml", None, ("a=1",)), validate=False)
    with pytest.raises(UserError, match="a compose file of Docker"):
        check_config(Command("compose.yaml", None, ()), validate=False)
