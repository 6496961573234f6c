"""`run -- bash train.sh`: the script is read, never run, and what only a run of it decides is not known."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.config import run_toml
from prime_train.config.command_start import read_command
from prime_train.facts import host
from prime_train.facts.facts import NotKnown
from prime_train.facts.machine import Gpu, VisibleGpus
from prime_train.programs.command.derive import derive
from prime_train.programs.command.trainer import KnownTrainer, know_trainer
from prime_train.rules import judge
from prime_train.spec.command import CommandSpec

HF = "from transformers import Trainer\n"
START = "torchrun --nproc-per-node 2 train.py --output_dir"


def write(folder: Path, script: str, trainer: str = HF) -> Path:
    (folder / "train.py").write_text(trainer)
    (folder / "train.sh").write_text(script)
    return folder


def know(argv: tuple[str, ...], trainer: str, cwd: Path, **more: object) -> KnownTrainer:
    return know_trainer(CommandSpec(argv=argv, cwd=str(cwd), trainer=trainer, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("script", "processes", "folder"),
    [
        (f"OUT=a/b\n{START} $OUT/c\n", 2, "a/b/c"),
        (f"set -e\npython prepare.py\nexec {START} o\n", 2, "o"),
        (f"{START} $ELSEWHERE/o\n", 2, ""),
        (f"{START} ${{OUT:-o}}\n", 2, ""),
        (f"cd below\n{START} o\n", 2, ""),
        ("torchrun --nproc-per-node ${N:-4} train.py --output_dir o\n", None, "o"),
        ("source inner.sh\n", 1, "inner"),
        ("bash inner.sh\n", 1, "inner"),
    ],
)
def test_a_script_shows_the_start_that_it_makes(
    script: str, processes: int | None, folder: str, tmp_path: Path
) -> None:
    write(tmp_path, script)
    (tmp_path / "inner.sh").write_text("python train.py --output_dir inner\n")
    assert read_command(["bash", "train.sh"], tmp_path).processes == processes
    text = derive(["bash", "train.sh"], tmp_path).text
    assert (f'dir = "{folder}"' in text) if folder else ("[command.checkpoints]" not in text)
    assert ('trainer = "hf"' in text) is (not script.startswith("cd"))  # where train.py is read from is known


def test_a_text_for_a_shell_is_read_as_well(tmp_path: Path) -> None:
    write(tmp_path, "")
    text = derive(["sh", "-c", f"export A=1; {START} o"], tmp_path).text
    assert all(part in text for part in ('trainer = "hf"', 'dir = "o"', "processes = 2", 'name = "train-'))


def test_of_several_trainings_none_is_chosen(tmp_path: Path) -> None:
    write(tmp_path, f"{START} a\n{START} b\n")
    derived = derive(["bash", "train.sh"], tmp_path)
    assert "trainer" not in derived.text
    assert "processes: not known, taken as 1" in derived.notes


def test_nothing_of_a_script_is_run(tmp_path: Path) -> None:
    write(tmp_path, f"touch made\n$(touch made)\n{START} $(touch made; echo o)\n")
    text = derive(["bash", "train.sh"], tmp_path).text
    assert "[command.checkpoints]" not in text
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("script", "how"), [(f'{START} o "$@"\n', "argument"), (f"{START} o\n", "none"), (f"{START} o $1\n", "argument")]
)
def test_a_resume_argument_is_added_only_where_the_script_passes_it_on(script: str, how: str, tmp_path: Path) -> None:
    write(tmp_path, script)
    assert know(("bash", "train.sh"), "hf", tmp_path).resume.how == how
    assert know(("python", "train.py"), "hf", tmp_path).resume.how == "argument"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=80))
def test_any_script_gives_a_run_toml(text: str) -> None:
    derived = derive(["bash", "-c", text], Path("/nowhere"))
    reading = run_toml.read(derived.text, "run.toml")
    assert reading.run is not None
    assert reading.run.command is not None
    judge.judge_config(reading)


# --- the rules of launch scripts ---------------------------------------------------------------------

BAD = "--per_device_train_batch_size 2 --bf16 true --fp16 true"


def found_in(argv: list[str], cwd: Path, code: str) -> list[tuple[str, str, str]]:
    verdict = judge.judge_config(run_toml.read(derive(argv, cwd).text, "run.toml"))
    return [(each.path, each.key, each.written) for each in verdict.findings if each.code == code]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_word_that_cannot_work_is_an_error_at_its_place(here: Path) -> None:
    argv = shlex.split(f"deepspeed --num_gpus 2 train.py {BAD}")
    assert found_in(argv, here, "HFT004") == [("run.toml", "command.argv.8", '"--fp16"')]
    assert found_in([*argv[:8], "--tf32", "true"], here, "HFT004") == []


def test_a_script_that_cannot_work_is_an_error_there(here: Path) -> None:
    write(here, f"torchrun train.py {BAD}\n")
    ((path, key, _),) = found_in(["bash", "train.sh"], here, "HFT004")
    assert (Path(path).name, key) == ("train.sh", "fp16")


def test_a_comment_in_the_file_silences_a_finding_on_a_word() -> None:
    argv = ", ".join(f'"{word}"' for word in f"torchrun train.py {BAD}".split())
    text = f'[run]\nname = "a"\nkind = "command"\n[command]\nargv = [{argv}]'
    assert not judge.judge_config(run_toml.read(text + "\n", "run.toml")).ok
    comment = "  # prime-train: ignore[HFT004]\n"
    silenced = judge.judge_config(run_toml.read(text + comment, "run.toml"))
    assert silenced.ok
    assert "HFT004" in silenced.ignored


# --- a process for each device -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "gpus", "processes"),
    [
        ("gpu", 3, 3),
        ("auto", 3, 3),
        ("auto", 0, os.cpu_count()),
        ("gpu", 0, None),
        ("cpu", 3, os.cpu_count()),
        ("auto", None, None),
    ],
)
def test_torchrun_starts_a_process_for_each_device(
    count: str, gpus: int | None, processes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = NotKnown("it does not answer") if gpus is None else VisibleGpus((Gpu("GPU", 1, (9, 0)),) * gpus)
    monkeypatch.setattr(host, "gpus", lambda: found)
    derived = derive(["torchrun", f"--nproc-per-node={count}", "t.py"], Path("/nowhere"))
    assert f"processes = {processes or 1}" in derived.text
    assert any(("not known" in note) is (processes is None) for note in derived.notes if "processes" in note)
