"""A command line stands for a run.toml: its name, processes, trainer and folder of checkpoints."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.config import run_toml
from prime_train.config.command_start import read_words
from prime_train.programs.command.derive import derive
from prime_train.programs.command.recognise import recognise


@pytest.mark.parametrize(
    ("command", "launcher", "name", "processes"),
    [
        ("torchrun --nproc-per-node 2 train.py --lr 3e-4", "torchrun", "train", 2),
        ("python -m torch.distributed.run --nproc-per-node=4 a/b.py", "torchrun", "b", 4),
        ("uv run torchrun --nproc_per_node=gpu -m torchtitan.train --module llama3", "torchrun", "train", None),
        ("accelerate launch --num_processes 8 run_clm.py --output_dir=o", "accelerate-launch", "run_clm", 8),
        ("env A=1 /venv/bin/python3.11 -u nano.py", "", "nano", 1),
        ("python -m axolotl.cli.train a.yml", "", "train", 1),
        ("bash run.sh", "", "bash", 1),
        ("sleep 3", "", "sleep", 1),
    ],
)
def test_the_words_of_a_command(command: str, launcher: str, name: str, processes: int | None) -> None:
    start = read_words(shlex.split(command))
    assert (start.launcher, start.name, start.processes) == (launcher, name, processes)


def test_a_flag_is_read_in_both_forms() -> None:
    start = read_words(shlex.split("python t.py --output_dir=a --save-dir b"))
    assert start.flag("--output_dir") == "a"
    assert start.flag("--other", "--save-dir") == "b"
    assert start.flag("--missing") == ""


LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
WORDS = st.lists(st.text(LETTERS, min_size=1), min_size=1)


@given(WORDS)
def test_any_words_make_a_run_toml_with_the_same_words(words: list[str]) -> None:
    derived = derive(words, Path("/nowhere"))
    reading = run_toml.read(derived.text, "run.toml")
    assert reading.faults == ()
    assert reading.run is not None
    assert reading.run.command is not None
    assert reading.run.command.argv == tuple(words)
    assert derive(words, Path("/nowhere")).text == derived.text


def test_another_folder_is_another_run() -> None:
    names = {derive(["python", "t.py"], Path(folder)).text for folder in ("/a", "/b")}
    assert len(names) == 2


HF = "from transformers import Trainer, TrainingArguments\nimport os\n"


@pytest.mark.parametrize(
    ("script", "words", "folder"),
    [
        (f"{HF}TrainingArguments(output_dir='own')\n", "", "own"),
        (f"{HF}TrainingArguments(output_dir='own')\n", "--output_dir flag", "flag"),
        (f"{HF}TrainingArguments(output_dir=os.environ['OUT'])\n", "", ""),  # computed: not known
        (f"{HF}TrainingArguments(output_dir='a')\nTrainingArguments(output_dir='b')\n", "", ""),
        (f"{HF}TrainingArguments()\n", "", "trainer_output"),
    ],
)
def test_the_folder_of_the_checkpoints_is_named_or_not_known(
    tmp_path: Path, script: str, words: str, folder: str
) -> None:
    (tmp_path / "t.py").write_text(script)
    text = derive(["python", "t.py", *words.split()], tmp_path).text
    assert 'trainer = "hf"' in text
    assert (f'dir = "{folder}"' in text) == bool(folder)
    assert ("dir = " in text) == bool(folder)


@pytest.mark.parametrize(
    ("script", "folder"),
    [
        ("Trainer(default_root_dir='root')", "root"),
        ("ModelCheckpoint(dirpath='own')\nTrainer(default_root_dir='root')", "own"),
        ("ModelCheckpoint(dirpath=computed)\nTrainer(default_root_dir='root')", ""),
        ("Trainer()", "."),
    ],
)
def test_the_folder_of_lightning_is_that_of_its_checkpoints(tmp_path: Path, script: str, folder: str) -> None:
    (tmp_path / "t.py").write_text(f"import lightning\n{script}\n")
    text = derive(["python", "t.py"], tmp_path).text
    assert (f'dir = "{folder}"' in text) == bool(folder)
    assert ("dir = " in text) == bool(folder)


def test_a_script_that_only_mentions_a_trainer_is_not_recognised(tmp_path: Path) -> None:
    for text in (
        "# import transformers\n",
        "text = 'from transformers import Trainer'\n",
        "import transformers\n",
        "(\n",
    ):
        (tmp_path / "t.py").write_text(text)
        assert recognise(read_words(["python", "./t.py"]), tmp_path) is None
        (tmp_path / "t.py").unlink()
