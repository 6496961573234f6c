"""The job of a command on rented machines: its scripts run here, on machines that are folders, and what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.away.sky.task import write_script
from prime_train.cli.run.preflight import parse_overrides
from prime_train.core.rundir import RunDir
from prime_train.events import LaunchAsked, read
from prime_train.spec import Run
from prime_train.spec.command import CheckpointSource, CommandSpec
from prime_train.spec.supervision import PrimeTrain, SpotMachine
from prime_train.toml.document import to_toml
from tests.system.away.stand_in_cloud import Cloud, Machine, Mount
from tests.system.programs.command.commands import write_config
from tests.unit.away.plans import read_preset
from tests.unit.cli.commands import prime_train, wait_until

STEPS = 40
TRAIN = f"""\
import os, re, sys, time, zipfile
from pathlib import Path
import its_package
out = Path(sys.argv[1])
out.mkdir(exist_ok=True)
saved = [int(found[1]) for path in out.iterdir() if (found := re.fullmatch(r"step_(\\d+)[.]pt", path.name))]
for step in range(max(saved, default=0) + 1, {STEPS} + 1):
    print(f"step {{step}} loss {{1 / step:.4f}}")
    time.sleep(0.05)
    if step % 5 == 0:
        with zipfile.ZipFile(out / f"step_{{step}}.pt.tmp", "w") as file:
            file.writestr("data", bytes(1000))
        os.rename(out / f"step_{{step}}.pt.tmp", out / f"step_{{step}}.pt")
"""
OUT = "my out/of it"
SPOT = {"setup": ["pip install 'it s package'", 'test "$VIRTUAL_ENV" = "$HOME/command-env"']}
CONFIG = write_config(
    "words",
    ("python", "-u", "train.py", OUT),
    run={"max_steps": STEPS},
    command_checkpoints={"dir": OUT, "layout": "torch"},
    command_resume={"how": "itself", "aside": "rename"},
    prime_train_spot=SPOT,
)
LIVE = f"""\
import time
from pathlib import Path
import its_package
from prime_train import live
first = int(Path(live.resume_path(), "state").read_text()) if live.resume_path() else 0
live.total({STEPS})
for step in range(first + 1, {STEPS} + 1):
    time.sleep(0.05)
    live.step(step, loss=1 / step)
    if step % 5 == 0:
        folder = Path("{OUT}", f"step_{{step}}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "state").write_text(str(step))
        live.checkpoint(folder, step)
live.finish()
"""
LIVE_CONFIG = write_config(
    "words",
    ("python", "-u", "train.py"),
    command={"trainer": "live"},
    command_progress={},
    command_checkpoints={"dir": OUT},
    prime_train_spot=SPOT,
)
# `uv venv` makes an environment whose pip writes down its words, and puts a module beside the script.
STAND_INS = {
    "curl": "exit 0",
    "uv": f"""\
[ "$1" = venv ] || exit 0
[ "$2" = --seed ] || exit 1
for folder; do :; done
mkdir -p "$folder/bin"
printf '#!/bin/sh\\nexec %s "$@"\\n' {sys.executable} > "$folder/bin/python"
printf '#!/bin/sh\\nfor word; do echo "$word"; done >> "$HOME/pip-words"\\ntouch its_package.py\\n' > "$folder/bin/pip"
chmod +x "$folder/bin/python" "$folder/bin/pip"
""",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a command, with a config of it."""
    made = tmp_path / "project"
    made.mkdir()
    (made / "train.py").write_text(TRAIN)
    (made / "run.toml").write_text(CONFIG)
    return made


def spot(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    before = ("run", "--spot", "--dry-run", "--cloud", "nebius")
    return prime_train(*before, *words, cwd=folder, HOME=str(folder.parent / "home"), **variables)


def read_task(folder: Path, *words: str) -> dict[str, Any]:
    done = spot(folder, "--gpus", "1xh100-80gb", *words)
    assert done.returncode == 0, done.stderr
    task: dict[str, Any] = yaml.safe_load(done.stdout)
    return task


def make_machine(task: dict[str, Any]) -> Callable[[Path], None]:
    """A function that does what SkyPilot does before the script of a job: it copies the folder and runs the setup."""

    def prepare(home: Path) -> None:
        shutil.copytree(task["workdir"], home / "sky_workdir")
        programs = home / ".local" / "bin"
        programs.mkdir(parents=True)
        for name, text in STAND_INS.items():
            (programs / name).write_text(f"#!/bin/sh\n{text}\n")
            (programs / name).chmod(0o755)
        environment = {"HOME": str(home), "PATH": f"{programs}:{os.defpath}"}
        subprocess.run(["bash", "-c", task["setup"]], cwd=home, env=environment, timeout=60, check=True)

    return prepare


@pytest.mark.parametrize(
    ("script", "config", "checkpoint", "damaged"),
    [(TRAIN, CONFIG, "step_{}.pt", "step_{}.pt"), (LIVE, LIVE_CONFIG, "step_{}/COMPLETE.json", "step_{}/state")],
    ids=["file of torch.save", "live"],
)
def test_the_next_machine_goes_on_from_the_newest_whole_checkpoint(
    tmp_path: Path, folder: Path, script: str, config: str, checkpoint: str, damaged: str
) -> None:
    (folder / "train.py").write_text(script)
    (folder / "run.toml").write_text(config)
    task = read_task(folder, "run.toml")
    cloud = Cloud(tmp_path, task, Mount.DIRECT, prepare=make_machine(task))
    saved = tmp_path / "bucket" / "checkpoints" / "words"
    machine = cloud.start()
    try:
        wait_until(lambda: (saved / checkpoint.format(15)).exists() or machine.process.poll() is not None)
        assert machine.process.poll() is None, machine.output.read_text()
    finally:
        machine.take_away()
    assert (machine.folder / "home/pip-words").read_text() == "install\nit s package\n"
    newest = max(step for step in range(STEPS) if (saved / checkpoint.format(step)).exists())
    whole = newest - 5
    os.truncate(saved / damaged.format(newest), 0)
    assert finish(cloud.start()) == 0
    starts = [record.event for record in read(RunDir(tmp_path / "bucket/runs/words").events)]
    resumed = [event.resume_step for event in starts if isinstance(event, LaunchAsked)]
    assert resumed == [0, whole]
    assert (saved / checkpoint.format(STEPS)).exists()
    assert finish(cloud.start()) == 0  # a third machine finds a finished run


def finish(machine: Machine) -> int:
    try:
        return machine.wait(120)
    finally:
        machine.take_away()


def test_a_folder_that_was_copied_is_not_the_link(tmp_path: Path, folder: Path) -> None:
    task = read_task(folder, "run.toml")
    (folder / "my out" / "of it").mkdir(parents=True)  # empty: a copy of it would hold the link, and not be it
    cloud = Cloud(tmp_path, task, Mount.DIRECT, prepare=make_machine(task))
    machine = cloud.start()
    assert finish(machine) == 0, machine.output.read_text()
    assert (machine.folder / "home/sky_workdir/my out/of it").is_symlink()
    assert (tmp_path / "bucket" / "checkpoints" / "words" / f"step_{STEPS}.pt").exists()


PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
NAMES = PLAIN.filter(lambda text: text.strip() and "/" not in text and text not in (".", ".."))


@settings(max_examples=25, deadline=None)
@given(st.lists(PLAIN, min_size=1, max_size=4), NAMES, st.lists(PLAIN, min_size=1, max_size=3))
def test_no_shell_reads_a_word_of_the_command(argv: list[str], name: str, setup: list[str]) -> None:
    """The setup alone is for a shell, and a file has its lines as they are."""
    command = CommandSpec(argv=tuple(argv), checkpoints=CheckpointSource(dir=f"{name}/{name}"))
    machine = PrimeTrain(spot=SpotMachine(setup=tuple(setup)))
    run = replace(read_preset("quickstart")[0], run=Run(name="words", kind="command", max_steps=9), command=command)
    config = f"argv = {to_toml(argv)}\nPRIME_TRAIN_CONFIG\n"
    script = write_script(replace(run, prime_train=machine), config, (), mounts=True)
    with TemporaryDirectory() as folder:
        home = Path(folder)
        ours, own = home / "prime-train-env/bin", home / "command-env/bin"
        stand_ins = {ours / "prime-train": 'printf "%s\\0" "$@" > "$HOME/words"', ours / "python": "exit 0"}
        stand_ins |= {own / "python": "exit 0", own / "bash": 'cp "$3" "$HOME/setup"', ours / "uv": "exit 0"}
        stand_ins |= {ours / "curl": "exit 0"}
        for program, text in stand_ins.items():
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(f"#!/bin/sh\n{text}\n")
            program.chmod(0o755)
        (home / "sky_workdir").mkdir()
        environment = {"HOME": folder, "PATH": f"{ours}:{os.defpath}", "PRIME_TRAIN_BUCKET": f"{folder}/bucket"}
        for text in script:
            words = ["bash", "-c", text]
            subprocess.run(words, env=environment | {"PRIME_TRAIN_JOB": "words"}, cwd=home, timeout=60, check=True)
        assert (home / "setup").read_bytes() == ("\n".join(setup).removesuffix("\n") + "\n").encode()
        assert (home / "prime-train-job/run.toml").read_bytes() == config.encode()
        given_words = (home / "words").read_bytes().decode().split("\0")
        (saves,) = (word for word in given_words if word.startswith("command.checkpoints.dir="))
        assert parse_overrides([saves]) == {"command.checkpoints.dir": f"{name}/{name}"}
        assert (home / "sky_workdir" / name / name).resolve() == home.resolve() / "bucket/checkpoints/words"


def test_a_setup_that_fails_ends_the_setup(tmp_path: Path, folder: Path) -> None:
    text = CONFIG.partition("setup = ")[0] + "setup = ['false', 'touch went-on']\n"
    (folder / "run.toml").write_text(text)
    home = tmp_path / "machine"
    with pytest.raises(subprocess.CalledProcessError):
        make_machine(read_task(folder, "run.toml"))(home)
    assert not (home / "sky_workdir" / "went-on").exists()


# --- from the words of a command line ----------------------------------------------------------------

SETUP = ("--set", 'prime_train.spot.setup=["pip install -r requirements.txt"]')
HUGGING_FACE = "from transformers import Trainer\nTrainer(output_dir='out')\n"


def test_a_launcher_for_each_gpu_has_the_processes_of_the_machine(folder: Path) -> None:
    (folder / "train.py").write_text(HUGGING_FACE)
    words = ("--gpus", "4xh100-80gb", *SETUP, "--", "torchrun", "--nproc-per-node", "gpu", "train.py")
    done = spot(folder, *words, HF_TOKEN="hf_of_this_environment", WANDB_API_KEY="w" * 40)
    assert done.returncode == 0, done.stderr
    task = yaml.safe_load(done.stdout)
    assert task["resources"]["accelerators"] == "H100:4"
    assert task["secrets"] == {"HF_TOKEN": "", "WANDB_API_KEY": ""}
    assert "hf_of_this_environment" not in done.stdout
    assert "--set 'command.checkpoints.dir=\"out\"' --set command.processes=4 &" in task["run"]
    assert "memory: not known" in done.stderr


REFUSED: dict[str, tuple[int, str, tuple[str, ...]]] = {
    # what is wrong: exit code, a part of the message, words after `run --spot`
    "no GPUs": (2, "--spot needs --gpus", (*SETUP, "--", "torchrun", "train.py")),
    "an unknown GPU": (2, "names no known GPU", ("--gpus", "2xh99", *SETUP, "--", "torchrun", "train.py")),
    "too many GPUs": (2, "a machine has at most 8", ("--gpus", "9xh200", *SETUP, "--", "torchrun", "train.py")),
    "GPUs of another run": (2, "the estimate chooses the GPUs", ("quickstart", "--gpus", "1xh200")),
    "a setup of another run": (1, "prime_train.spot.setup is for", ("quickstart", *SETUP)),
    "no setup": (1, "prime_train.spot.setup is empty", ("--gpus", "1xh200", "--", "torchrun", "train.py")),
    "no folder": (1, "the folder of its checkpoints is not known", ("--gpus", "1xh200", *SETUP, "--", "echo", "a")),
    "a folder elsewhere": (1, "not in a folder of their own", ("--set", "command.checkpoints.dir=../out")),
    "the folder itself": (1, "not in a folder of their own", ("--set", "command.checkpoints.dir=.")),
    "no resume": (1, "how it resumes is not known", ("--set", "command.resume.how=none")),
    "no layout": (1, "the layout of its checkpoints is not known", ("--set", 'command.trainer=""')),
    "a path of this machine": (1, "is a path of this machine", ("--set", 'command.env=["DATA=x:/etc/passwd"]')),
    "a path in the home folder": (1, "is a path of this machine", ("--set", 'command.env=["CACHE=~/cache"]')),
    "no cloud of the GPU": (1, "no such GPU on azure", ("--cloud", "azure", "--gpus", "1xrtx-4090")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_in_four_parts(folder: Path, case: str) -> None:
    code, text, words = REFUSED[case]
    (folder / "train.py").write_text(HUGGING_FACE)
    if "--" not in words and words[0] != "quickstart":
        gpus = () if "--gpus" in words else ("--gpus", "1xh100-80gb")
        words = (*gpus, *SETUP, *words, "--", "torchrun", "train.py")
    refuse(folder, code, text, *words)


def refuse(folder: Path, code: int, text: str, *words: str) -> None:
    done = spot(folder, *words)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    shown = " ".join(done.stderr.split())
    assert text in shown
    assert all(part in done.stderr for part in ("error: ", "  what  ", "  why   ", "  fix   "))


WORDS = ("--gpus", "1xh100-80gb", *SETUP, "--", "torchrun", "train.py")


@pytest.mark.parametrize("key", ["command.env", "prime_train.spot.setup"])
def test_a_secret_is_refused_and_not_shown(folder: Path, key: str) -> None:
    (folder / "train.py").write_text(HUGGING_FACE)
    secret = "hf_" + "a1B2" * 9
    before = ("--gpus", "1xh100-80gb", *SETUP, "--set", f'{key}=["NAME={secret}"]')
    done = spot(folder, *before, "--", "torchrun", "train.py")
    assert done.returncode in (1, 2)
    assert "secret" in done.stderr
    assert secret not in done.stdout + done.stderr


def test_a_setup_with_a_secret_by_name_is_refused_and_not_shown(folder: Path) -> None:
    (folder / "train.py").write_text(HUGGING_FACE)
    words = ("--set", 'prime_train.spot.setup=["pip install --token abcdefgh x"]', "--", "torchrun", "train.py")
    done = spot(folder, "--gpus", "1xh100-80gb", *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert "it holds the secret of --token" in done.stderr
    assert "abcdefgh" not in done.stderr


def fill_folder(folder: Path) -> str:
    (folder / "out" / "checkpoint-5").mkdir(parents=True)
    return "is not empty"


def add_login(folder: Path) -> str:
    (folder / "keys").mkdir()
    (folder / "keys" / "server.pem").write_text("")
    (folder / ".env").write_text("")
    return "names of secrets: .env, keys/server.pem"


def add_clone(folder: Path) -> str:
    for clone in (folder, folder / "third_party" / "x"):
        (clone / ".git").mkdir(parents=True)
        (clone / ".git" / "config").write_text("")
    return "names of secrets: third_party/x/.git/"


def add_large_file(folder: Path) -> str:
    with (folder / "data.bin").open("wb") as file:
        file.truncate(3 * 2**30)
    return "it has 3.0 GiB in 4 files; at most 2.0 GiB"


def link_script(folder: Path) -> str:
    (folder / "train.py").rename(folder.parent / "train.py")
    (folder / "train.py").symlink_to(folder.parent / "train.py")
    return "'train.py' is a path of this machine"


@pytest.mark.parametrize("spoil", [fill_folder, add_login, add_clone, link_script])
def test_a_folder_that_cannot_be_copied_is_refused(folder: Path, spoil: Callable[[Path], str]) -> None:
    (folder / "train.py").write_text(HUGGING_FACE)
    refuse(folder, 1, spoil(folder), *WORDS)


def test_what_skyignore_names_is_no_part_of_the_job(folder: Path) -> None:
    (folder / "train.py").write_text(HUGGING_FACE)
    (folder / "unused").mkdir()
    (folder / "unused" / "more.txt").write_text("")
    text = add_large_file(folder)
    refuse(folder, 1, text, *WORDS)
    add_login(folder)
    (folder / ".skyignore").write_text("# of tests\n/data.bin\n*.pem\n.env\nunused\n")
    done = spot(folder, *WORDS)
    assert done.returncode == 0, done.stderr
    assert "in 3 files" in done.stderr  # train.py, run.toml and .skyignore


def test_what_git_ignores_is_no_part_of_the_job(folder: Path) -> None:
    (folder / "train.py").write_text(HUGGING_FACE)
    add_login(folder)
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    subprocess.run(["git", "config", "core.fsmonitor", "touch ran; false"], cwd=folder, check=True)
    (folder / ".gitignore").write_text("*.pem\n.env\n")
    done = spot(folder, *WORDS)
    assert done.returncode == 0, done.stderr
    assert not (folder / "ran").exists()  # a repository may be hostile
    named = spot(folder, *WORDS, "--data=keys/server.pem", "out/x.pem", "other.pem")  # the last two are not there
    assert named.stderr.count("not copied: ") == 1
    assert "not copied: keys/server.pem, because" in named.stderr
    (folder / ".skyignore").write_text("")  # git does not count beside it
    refuse(folder, 1, "names of secrets: .env, keys/server.pem", *WORDS)


def test_a_link_in_the_folder_is_no_part_of_the_job(folder: Path) -> None:
    (folder / "train.py").write_text(HUGGING_FACE)
    (folder / "current.yaml").symlink_to("run.toml")
    done = spot(folder, *WORDS, "--config=current.yaml")
    assert done.returncode == 0, done.stderr
    assert "not copied: current.yaml, because it is or is behind a link" in " ".join(done.stderr.split())


def test_the_home_folder_is_not_copied(folder: Path) -> None:
    (folder / "train.py").write_text(HUGGING_FACE)
    done = prime_train("run", "--spot", "--dry-run", *WORDS, cwd=folder, HOME=str(folder))
    assert done.returncode == 1
    assert "it holds the home folder" in done.stderr


def test_a_path_in_the_folder_is_given_relative_to_it(folder: Path) -> None:
    (folder / "train.py").write_text(HUGGING_FACE)
    refuse(folder, 1, "data/x, relative to the folder", *WORDS, f"--data={folder}/data/x")


def test_a_folder_from_a_variable_of_this_machine_is_refused(folder: Path) -> None:
    words = ("--set", "command.trainer=nanochat", "--set", "command.checkpoints.dir=''", *WORDS)
    done = spot(folder, *words, NANOCHAT_BASE_DIR=str(folder / "base"))
    assert done.returncode == 1
    assert "from NANOCHAT_BASE_DIR of this environment" in done.stderr
