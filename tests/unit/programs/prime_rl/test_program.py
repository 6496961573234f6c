from __future__ import annotations

import os
from pathlib import Path

import pytest
import tomli

from prime_train.config import detect
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.programs.prime_rl import launcher, run_directory
from prime_train.programs.prime_rl.launcher import Launcher
from prime_train.programs.prime_rl.program import PrimeRlProgram
from prime_train.programs.prime_rl.settings import prepare_run, write_settings
from prime_train.spec import RunSpec, from_json, to_json
from prime_train.spec.answers import prime_rl_of, replace_parts
from prime_train.supervise.launch.program import Host
from tests.fakes.prime_rl_launcher.standin import metadata

HEAD = """\
# Reverse text, on 2 GPUs.
max_steps = 20

[prime_train]
prime_rl = "2026-08"

[prime_train.restart]
backoff_s = 0.5

[model]
name = "example/words"  # the base

[orchestrator]
batch_size = 128
group_size = 16
renderer.name = "default"

[[orchestrator.train.source]]
name = "words"
[orchestrator.train.source.env.taskset]
id = "words"

[trainer.optim]
lr = 3e-6

[inference]
"""
_RENDERER = 'renderer.name = "default"\n'
MAY = """\
max_steps = 20
[prime_train]
prime_rl = "2026-05"
[model]
name = "example/words"
[orchestrator]
batch_size = 128
renderer.name = "default"
[[orchestrator.train.env]]
id = "words"
[trainer.optim]
lr = 3e-6
[inference]
"""
JAN = MAY.replace("2026-05", "2026-01").replace("orchestrator.train.env", "orchestrator.env").replace(_RENDERER, "")
SFT = """\
max_steps = 100
output_dir = "trained/words"
[prime_train]
prime_rl = "2026-08"
[model]
name = "example/words"
[renderer]
name = "qwen3"
[data]
name = "example/texts"
"""
CWD = Path("/work here")
RUN_DIR = RunDir(Path("/runs/words"))


def launcher_of(text: str, root: str = "rl", path: str = "rl.toml") -> tuple[Launcher, RunSpec]:
    reading = detect.read(text, path)
    assert (reading.root, reading.faults) == (root, ())
    assert reading.run is not None
    started = Launcher(text, reading.run, root, Path("/venv/bin/rl"), "abc", "/bin", CWD)
    return started, prepare_run(reading.run, "words", CWD)


def copy_of(text: str, attempt: int = 1, resume_step: int = 0, **more: str) -> tuple[str, dict[str, object]]:
    started, run = launcher_of(text, **more)
    ((path, copy),) = started.plan(run, RUN_DIR, attempt, resume_step)[0].files
    assert path == RUN_DIR.attempt(attempt) / "prime_rl.toml"
    return copy, tomli.loads(copy)


def test_the_launcher_is_started_with_a_copy_of_the_file() -> None:
    started, run = launcher_of(HEAD)
    (launch,) = started.plan(run, RUN_DIR, 2, 10)
    assert launch.argv[-3:] == ("/venv/bin/rl", "@", "/runs/words/attempts/002/prime_rl.toml")
    assert launch.argv[-4].endswith("guard.py")
    assert launch.cwd == CWD
    assert launch.log == RUN_DIR.log(2, "prime_rl")
    variables = {variable.name: variable.value for variable in launch.variables}
    assert variables["PATH"] == f"/venv/bin{os.pathsep}/bin"
    assert variables["PRL_RUN_ID"] == variables["WANDB_SHARED_RUN_ID"] == "abc"
    assert variables["NEVER_CLEAN"] == "1"
    assert not any("clean" in argument for argument in launch.argv)


def test_the_copy_keeps_comments_and_states_what_a_supervised_run_needs() -> None:
    copy, said = copy_of(HEAD)
    assert "# Reverse text, on 2 GPUs." in copy
    assert 'name = "example/words"  # the base' in copy
    assert "prime_train" not in said
    assert said["run"] == {"name": "words"}
    assert said["output_dir"] == "/work here/outputs"
    assert said["ckpt"] == {"interval": 2, "keep_last": 2}
    assert "resume" not in said
    assert "clean" not in said


DATED = HEAD.replace('id = "words"\n', 'id = "words"\nsince = 2026-01-31\n')


@pytest.mark.parametrize("text", [HEAD, DATED, MAY, JAN])
def test_nothing_else_is_changed(text: str) -> None:
    _, said = copy_of(text, resume_step=4)
    before = tomli.loads(text)
    ours = {"run", "output_dir", "ckpt", "resume", "clean"}
    assert {key: value for key, value in said.items() if key not in ours} == {
        key: value for key, value in before.items() if key != "prime_train"
    }


def test_a_resume_names_its_step() -> None:
    assert copy_of(HEAD, resume_step=12)[1]["resume"] == {"step": 12}
    for text in (MAY, JAN):
        said = copy_of(text, resume_step=12)[1]
        assert said["ckpt"] == {"interval": 2, "keep_last": 2, "resume_step": 12}
        assert "resume" not in said


def test_a_fork_is_resumed_from_its_own_checkpoints_once_it_has_some() -> None:
    fork = HEAD.replace("[model]", '[resume]\ndir = "other/checkpoints/step_8"\n\n[model]')
    assert copy_of(fork)[1]["resume"] == {"dir": "other/checkpoints/step_8"}
    assert copy_of(fork, resume_step=4)[1]["resume"] == {"step": 4}


def test_a_run_before_2026_08_is_named_by_its_folder() -> None:
    assert copy_of(MAY)[1]["output_dir"] == "/work here/outputs/words"
    assert copy_of(f'output_dir = "/data/mine"\n{MAY}')[1]["output_dir"] == "/data/mine"
    assert "run" not in copy_of(MAY)[1]


def test_what_the_file_states_of_checkpoints_stays() -> None:
    saving = HEAD.replace("[model]", "[ckpt]\ninterval = 7\n\n[model]")
    assert copy_of(saving)[1]["ckpt"] == {"interval": 7}
    only_at_the_end = HEAD.replace("[model]", "[ckpt] # at the end\nkeep_last = 1\n\n[model]")
    assert copy_of(only_at_the_end)[1]["ckpt"] == {"keep_last": 1, "interval": 2}


@pytest.mark.parametrize(
    ("text", "key"), [(f"clean = true\n{HEAD}", "clean"), (f"clean_output_dir = true\n{MAY}", "clean_output_dir")]
)
def test_cleaning_is_switched_off_and_reported(text: str, key: str) -> None:
    assert copy_of(text)[1][key] is False
    started, run = launcher_of(text)
    notable = [setting for setting in started.settings(run, 0) if setting.is_notable]
    assert [setting.key for setting in notable if setting.value is False] == [key]


def test_2026_01_cleans_unless_it_is_switched_off() -> None:
    assert copy_of(JAN)[1]["clean"] is False


def test_a_start_from_the_beginning_finds_its_folder_empty() -> None:
    """prime-rl refuses a folder with files of an earlier start; a first start finds only what is somebody else's."""
    started, run = launcher_of(HEAD)
    assert started.plan(run, RUN_DIR, 1, 0)[0].aside == ()
    assert started.plan(run, RUN_DIR, 2, 0)[0].aside == (CWD / "outputs" / "words",)
    assert started.plan(run, RUN_DIR, 2, 4)[0].aside == ()


def test_checkpoints_that_lie_apart_are_in_the_way_too() -> None:
    started, run = launcher_of(HEAD.replace("[model]", '[ckpt]\noutput_dir = "/big"\n\n[model]'))
    assert started.plan(run, RUN_DIR, 2, 0)[0].aside == (CWD / "outputs" / "words", Path("/big/checkpoints"))


def test_a_layout_that_cannot_be_edited_is_reported() -> None:
    started, run = launcher_of(HEAD)
    with pytest.raises(UserError, match="cannot be set in a copy"):
        write_settings("prime_train.prime_rl = '2026-08'\nrun = 7\n", started.settings(run, 0))


def test_sft_has_its_own_launcher_and_no_orchestrator() -> None:
    _, run = launcher_of(SFT, "sft", "sft.toml")
    assert run_directory.find_folder(run) == Path("/work here/trained/words/words")
    assert launcher.count_processes(run) == 2
    assert copy_of(SFT, root="sft", path="sft.toml")[1]["ckpt"] == {"interval": 10, "keep_last": 2}
    assert launcher.compute_stop_grace_s(run) == 70.0


def test_the_grace_grows_with_the_processes() -> None:
    """5 s for each child, as the launcher waits for its threads, and 60 s for their trees."""
    _, run = launcher_of(HEAD)
    assert launcher.count_processes(run) == 5  # inference, one environment server, orchestrator, trainer, tail
    assert launcher.compute_stop_grace_s(run) == 85.0


def test_gpus_are_counted_over_both_roles() -> None:
    two_and_six = "[deployment]\nnum_train_gpus = 2\nnum_infer_gpus = 6\n[model]"
    assert launcher.count_gpus(launcher_of(HEAD.replace("[model]", two_and_six))[1]) == 8
    assert launcher.count_gpus(launcher_of(HEAD)[1]) == 2
    assert launcher.count_gpus(launcher_of(f"trainer_gpu_ids = [0, 1]\ninference_gpu_ids = [0]\n{JAN}")[1]) == 2


def test_checkpoints_are_read_in_each_layout(tmp_path: Path) -> None:
    _, run = launcher_of(HEAD)
    assert run.prime_rl is not None
    run = replace_parts(run, launch=prime_rl_of(run).launch._replace(output_dir=str(tmp_path)))
    folder = tmp_path / "words" / "checkpoints"
    for step, names in ((2, ("trainer/.metadata", "orchestrator/progress.pt")), (4, ("trainer/.metadata",)), (6, ())):
        for name in ("trainer/__0_0.distcp", *names):
            path = folder / f"step_{step}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(metadata({"__0_0.distcp": 3}) if path.name == ".metadata" else b"abc")
    found = run_directory.list_checkpoints(run)
    assert [(checkpoint.step, checkpoint.complete) for checkpoint in found] == [(6, False), (4, False), (2, True)]
    assert found[2].size_bytes == 6 + len(metadata({"__0_0.distcp": 3}))
    assert "progress.pt" in found[1].problem
    sft = replace_parts(run, rollout=None)
    assert [checkpoint.step for checkpoint in run_directory.list_checkpoints(sft) if checkpoint.complete] == [4, 2]


def test_logs_are_those_written_since_the_attempt_began(tmp_path: Path) -> None:
    _, run = launcher_of(HEAD)
    assert run.prime_rl is not None
    run, run_dir = (
        replace_parts(run, launch=prime_rl_of(run).launch._replace(output_dir=str(tmp_path))),
        RunDir(tmp_path / "run"),
    )
    logs = tmp_path / "words" / "logs"
    before, now = logs / "attempt_1" / "trainer.log", logs / "attempt_2" / "envs" / "train" / "words.log"
    copy = run_dir.attempt(2) / "prime_rl.toml"
    for path in (before, copy, now, run_dir.log(2, "prime_rl"), logs / "attempt_2" / "notes.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (logs / "latest").symlink_to("attempt_2")
    os.utime(before, (1000, 1000))
    assert run_directory.list_logs(run, run_dir, 2) == sorted([run_dir.log(2, "prime_rl"), now])
    assert run_directory.list_logs(run, run_dir, 3) == []


def test_what_is_kept_of_a_run_can_be_read_back() -> None:
    """A learning rate of 0 is legal in prime-rl, and not in a run.toml."""
    for text in (HEAD, HEAD.replace("3e-6", "0.0")):
        _, run = launcher_of(text)
        assert from_json(to_json(run)) == run


def test_a_file_of_prime_rl_is_supervised_as_its_prime_train_states() -> None:
    ours = '[prime_train.watch]\nengine = "alert"\n[prime_train.heartbeat]\nstep_limit_s = 1200\n'
    text = HEAD.replace("[prime_train.restart]", f"{ours}[prime_train.restart]")
    _, run = launcher_of(text)
    asked = run.prime_train
    assert (asked.restart.backoff_s, asked.watch.engine, asked.heartbeat.step_limit_s) == (0.5, "alert", 1200.0)
    assert "prime_train" not in copy_of(text)[1]


def test_vllm_under_prime_rl_gets_the_variables_that_its_version_needs() -> None:
    host = Host({"VLLM_USE_V1": "0"}, 8, "1:1")
    needs = PrimeRlProgram().environment("prime_rl", launcher_of(HEAD)[1], RUN_DIR, 1, host)
    wanted = {variable.name: variable.value for variable in needs.wanted}
    assert wanted["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert wanted["VLLM_NO_USAGE_STATS"] == "1"
    assert "VLLM_USE_V1" not in wanted
    ignored = next(note for note in needs.left_out if note.name == "VLLM_USE_V1")
    assert (ignored.how, "0.27" in ignored.reason) == ("ignored", True)


def test_a_fine_tuning_of_prime_rl_gets_no_variables_of_vllm() -> None:
    needs = PrimeRlProgram().environment(
        "prime_rl", launcher_of(SFT, "sft", "sft.toml")[1], RUN_DIR, 1, Host({}, 8, "1:1")
    )
    assert not [variable.name for variable in needs.wanted if variable.name.startswith("VLLM")]
