"""A run without a checkpoint is told what was looked for and where, or what is not known."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from prime_train.programs.command.describe import describe_search
from prime_train.programs.command.trainer import KnownTrainer, know_trainer
from prime_train.spec.command import CommandSpec


def know(command: str, trainer: str, cwd: Path) -> KnownTrainer:
    return know_trainer(CommandSpec(argv=tuple(shlex.split(command)), cwd=str(cwd), trainer=trainer))


@pytest.mark.parametrize(
    ("command", "trainer", "texts"),
    [
        (
            "python t.py --output_dir out",
            "hf",
            [r"no folder named checkpoint-(\d+) in {cwd}/out, which does not exist"],
        ),
        ("python t.py", "lightning", ["file named", "or folder named", "{cwd}"]),
        ("python -m areal.x cluster.fileroot=/a", "areal", ["layout of what AReaL saves", "in place", "is not known"]),
        ("python t.py", "", ["where a trainer without a profile saves is not known", "command.checkpoints.dir"]),
    ],
)
def test_what_was_looked_for(command: str, trainer: str, texts: list[str], tmp_path: Path) -> None:
    found = describe_search(know(command, trainer, tmp_path))
    for text in texts:
        assert text.replace("{cwd}", str(tmp_path)) in found


def test_an_option_chooses_the_layout_and_how_the_way_is_made(tmp_path: Path) -> None:
    plain = know("swift sft --output_dir o", "ms-swift", tmp_path)
    flash = know("swift sft --output_dir o --use_flash_ckpt true", "ms-swift", tmp_path)
    assert (len(plain.layouts), plain.layouts[0].tracker, plain.resume.aside) == (1, None, "rename")
    assert flash.layouts[0].tracker is not None
    assert flash.resume.aside == "tracker"
    assert know("swift sft --use_flash_ckpt false", "ms-swift", tmp_path).layouts == plain.layouts
