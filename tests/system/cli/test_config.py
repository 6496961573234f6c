"""`prime-train config`: what it prints, its exit codes, and bad input."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from prime_train.events import LaunchAsked, RunOpened
from tests.system.cli.terminal import COLUMNS, Terminal, write_program
from tests.unit.cli.commands import prime_train
from tests.unit.config.prime_rl.files import RL_2026_05
from tests.unit.views.written_runs import GONE, write_run

RUN = """\
# a small run
[run]
name = "small"
max_steps = 100
[model]
layers = 4
hidden_size = 256
heads = 4
[data]
ctx_tokens = 512
sources = [{kind = "files", path = "a.txt"}]
[batch]
micro_batch = 8
"""
GPUS = ("--gpus", "1xh100-80gb")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.toml").write_text(RUN)
    changed = RUN.replace("micro_batch = 8", "micro_batch = 16").replace("ctx_tokens = 512", "ctx_tokens = 1024")
    (tmp_path / "b.toml").write_text(changed)
    return tmp_path


def _config(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return prime_train("config", *arguments, cwd=folder, XDG_DATA_HOME=str(folder / "data"))


def _write_run(folder: Path, name: str, *texts: str) -> None:
    run_dir = write_run(
        folder / "runs" / name,
        [
            part
            for number in range(1, len(texts) + 1)
            for part in (
                (float(number), "supervisor", RunOpened(name, GONE, 100, "0.1.0", number, "ada@host")),
                (number + 0.1, "supervisor", LaunchAsked(number, 0)),
            )
        ],
    )
    *earlier, last = texts
    for number, text in enumerate(earlier, start=1):
        run_dir.earlier_config(number).write_text(text)
    run_dir.config.write_text(last)


def test_equal_values_are_exit_code_0_and_print_nothing(folder: Path) -> None:
    (folder / "same.toml").write_text(RUN.replace("# a small run\n", "").replace("100", "1_00"))
    done = _config(folder, "diff", "a.toml", "same.toml")
    assert (done.returncode, done.stdout) == (0, "")


def test_a_difference_has_its_impact_and_what_a_resume_refuses(folder: Path) -> None:
    done = _config(folder, "diff", "a.toml", "b.toml", *GPUS, "--json")
    assert done.returncode == 1
    rows = {row["key"]: row for row in json.loads(done.stdout)["differences"]}
    assert list(rows) == ["data.ctx_tokens", "batch.micro_batch"]
    assert rows["batch.micro_batch"]["impact"]["gib"] > 0
    assert "GiB on GPU 0" in rows["batch.micro_batch"]["impact"]["text"]
    assert rows["data.ctx_tokens"]["refused_by_resume"] == "it decides what each step reads"
    assert rows["batch.micro_batch"]["about"].startswith("Sequences")


AXOLOTL = """base_model: Qwen/Qwen3-0.6B
sequence_len: 2048
micro_batch_size: 8
gradient_accumulation_steps: 4
num_epochs: 1
learning_rate: 0.0001
datasets:
  - path: x/y
    type: chat
output_dir: out
"""
TRL = (
    "accelerate launch -m trl.scripts.sft --model_name_or_path Qwen/Qwen3-0.6B --per_device_train_batch_size 8 "
    "--dataset_name x/y --output_dir out\n"
)


@pytest.mark.parametrize(
    ("name", "text", "key", "idle"),
    [
        ("axolotl.yaml", AXOLOTL, "micro_batch_size", {"learning_rate", 'datasets."x/y".type'}),
        ("train.sh", TRL, '"0.trl".per_device_train_batch_size', set()),
    ],
)
def test_each_difference_of_another_trainers_file_has_its_own_impact(
    tmp_path: Path, name: str, text: str, key: str, idle: set[str]
) -> None:
    changed = text.replace("size: 8", "size: 16").replace("size 8", "size 16")
    changed = changed.replace("0.0001", "0.0002").replace("type: chat", "type: alpaca")
    (tmp_path / name).write_text(text)
    (tmp_path / f"other-{name}").write_text(changed)
    done = _config(tmp_path, "diff", name, f"other-{name}", *GPUS, "--json")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    rows = {row["key"]: row["impact"] for row in document["differences"]}
    assert rows.pop(key)["gib"] == document["impact"]["gib"] > 0, "the batch alone decides the memory"
    assert rows == dict.fromkeys(idle)


def test_a_pipe_gets_a_unified_diff_and_the_reason_for_an_unknown_impact(folder: Path) -> None:
    done = _config(folder, "diff", "a.toml", "b.toml")
    assert done.stdout.startswith("--- a.toml\n+++ b.toml\n@@ data.ctx_tokens @@")
    assert "-batch.micro_batch = 8\n+batch.micro_batch = 16\n" in done.stdout
    assert "\x1b" not in done.stdout
    assert "not known" in done.stderr


def test_a_terminal_gets_both_sides_beside_each_other(folder: Path) -> None:
    screen = Terminal(write_program(folder), "config", "diff", "a.toml", "b.toml", cwd=folder)
    assert screen.end() == 1
    assert ["batch.micro_batch", "8", "16"] in [row.split()[:3] for row in screen.rows]
    (marked,) = (row for row in screen.rows if "data.ctx_tokens" in row)
    assert marked.startswith("!  data.ctx_tokens")
    assert max(map(len, screen.rows)) <= COLUMNS
    screen.close()


def test_runs_attempts_presets_and_saved_versions_are_compared(folder: Path) -> None:
    later = RUN.replace("layers = 4", "layers = 6")
    _write_run(folder, "first", RUN, later)
    assert _config(folder, "save", "good", "b.toml", "--note", "the best").returncode == 0
    for before, after, keys in (
        ("first@1", "first", ["model.layers"]),
        ("first@1", "a.toml", []),
        ("runs/first", "first@2", []),
        ("a.toml", "good", ["data.ctx_tokens", "batch.micro_batch"]),
        ("good@1", "b.toml", []),
        ("preset:quickstart", "quickstart", []),
    ):
        document = json.loads(_config(folder, "diff", before, after, "--json").stdout)
        assert [row["key"] for row in document["differences"]] == keys, (before, after)


def test_final_metrics_of_two_runs_are_compared(folder: Path) -> None:
    for name, steps in (("first", 10), ("second", 20)):
        _write_run(folder, name, RUN)
        _write_metrics(folder / "runs" / name, steps)
    document = json.loads(_config(folder, "diff", "first", "second", "--json").stdout)
    assert document["metrics"][0] == {"name": "step", "before": 10.0, "after": 20.0}


def _write_metrics(run: Path, steps: int) -> None:
    lines = [json.dumps({"step": step, "loss": 1 / step}) for step in range(1, steps + 1)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_history_lists_each_config_and_restore_puts_one_back(folder: Path) -> None:
    _write_run(folder, "first", RUN, RUN.replace("layers = 4", "layers = 6"))
    (_, one, two) = _config(folder, "history", "first").stdout.splitlines()
    assert one.split()[:2] == ["1", "1"]
    assert two.endswith("ada@host  model.layers 4 -> 6")
    assert _config(folder, "restore", "first", "1", "again.toml").returncode == 0
    assert (folder / "again.toml").read_text() == RUN
    refused = _config(folder, "restore", "first", "2", "again.toml")
    assert (refused.returncode, (folder / "again.toml").read_text()) == (2, RUN)
    assert _config(folder, "restore", "first", "2", "again.toml", "--force").returncode == 0
    assert "layers = 6" in (folder / "again.toml").read_text()
    assert (folder / "runs/first/config.toml").read_text() != RUN


def test_a_name_of_a_run_and_of_a_saved_config_is_asked_about(folder: Path) -> None:
    _write_run(folder, "good", RUN)
    _config(folder, "save", "good", "b.toml")
    for arguments in (("show", "good"), ("restore", "good", "1"), ("diff", "good@1", "a.toml")):
        done = _config(folder, *arguments)
        assert (done.returncode, "good is a run and a saved config" in done.stderr.replace("good@1", "good")) == (
            2,
            True,
        )
    assert _config(folder, "show", "run:good").stdout == RUN
    assert "micro_batch = 16" in _config(folder, "show", "saved:good").stdout


def test_a_secret_is_neither_saved_nor_shown(folder: Path) -> None:
    secret = "0123456789abcdef0123456789abcdef01234567"
    (folder / "rl.toml").write_text(f'{RL_2026_05}\n[env_vars]\nWANDB_API_KEY = "{secret}"\n')
    (folder / "other.toml").write_text(RL_2026_05)
    refused = _config(folder, "save", "good", "rl.toml")
    assert refused.returncode == 2
    assert "it contains a secret" in refused.stderr
    assert not list((folder / "data").rglob("*.json"))
    shown = [_config(folder, "show", "rl.toml"), _config(folder, "show", "rl.toml", "--resolved")]
    shown += [_config(folder, "diff", "rl.toml", "other.toml", *more) for more in ((), ("--json",))]
    for done in (refused, *shown):
        assert secret not in done.stdout + done.stderr
    assert "WANDB_API_KEY" in shown[0].stdout


# --- git revisions -------------------------------------------------------------------------------


def _git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(folder: Path) -> Path:
    _git(folder, "init", "-q")
    _git(folder, "add", "a.toml")
    _git(folder, "commit", "-qm", "a")
    (folder / "a.toml").write_text(RUN.replace("layers = 4", "layers = 6"))
    return folder


def test_a_file_of_a_revision_is_compared_with_that_of_now(repository: Path) -> None:
    document = json.loads(_config(repository, "diff", "HEAD:a.toml", "a.toml", "--json").stdout)
    assert [(row["key"], row["before"], row["after"]) for row in document["differences"]] == [("model.layers", 4, 6)]


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_a_hostile_repository_runs_nothing(repository: Path) -> None:
    trap = repository / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch {repository}/sprung\ncat\n")
    trap.chmod(0o755)
    (repository / ".gitattributes").write_text("*.toml diff=trap filter=trap\n")
    _append(
        repository / ".git/config",
        f"[core]\n\tpager = {trap}\n\tfsmonitor = {trap}\n\thooksPath = {repository}\n\tsshCommand = {trap}\n"
        f'[diff "trap"]\n\ttextconv = {trap}\n\tcommand = {trap}\n[filter "trap"]\n\tsmudge = {trap}\n'
        f'[alias]\n\tcat-file = !{trap}\n[protocol]\n\tallow = always\n[protocol "ext"]\n\tallow = always\n'
        f'[remote "origin"]\n\turl = ext::{trap}\n\tpromisor = true\n\tpartialclonefilter = blob:none\n'
        "[extensions]\n\tpartialClone = origin\n",
    )
    assert _config(repository, "show", "HEAD:a.toml").stdout == RUN
    blob = subprocess.run(["git", "rev-parse", "HEAD:a.toml"], cwd=repository, capture_output=True, text=True).stdout
    (repository / ".git/objects" / blob[:2] / blob[2:].strip()).unlink()  # a partial clone would fetch it
    assert _config(repository, "show", "HEAD:a.toml").returncode in (2, 4)
    assert not (repository / "sprung").exists()


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "code", "what"),
    [
        ("nothing", 2, "no file, run, saved config or preset has this name"),
        ("nothing.toml", 2, "there is no such file"),
        ("first@9", 2, "no attempt 9"),
        ("good@9", 2, "no file, run, saved config or preset"),
        ("saved:good", 2, "there is no saved config"),
        ("run:good", 2, "no run 'good'"),
        ("preset:good", 2, "no preset is called so"),
        ("HEAD:b.toml", 2, "git has no file b.toml in HEAD"),
        ("nosuch:a.toml", 2, "git has no file a.toml in nosuch"),
        (".", 2, "it is a folder"),
        ("broken.toml", 2, "broken.toml:1"),
        ("wrong.toml", 2, "data"),
        ("binary.toml", 2, "is not UTF-8"),
        ("huge.toml", 2, "it has more than"),
        ("pipe.toml", 2, "a named pipe"),
        ("", 2, ""),
        ("x\ny", 2, "no file, run"),
    ],
)
def test_bad_input_on_either_side_has_four_parts(repository: Path, word: str, code: int, what: str) -> None:
    _write_run(repository, "first", RUN)
    (repository / "broken.toml").write_text("[run\n")
    (repository / "wrong.toml").write_text("[run]\nname = 'a'\nmax_steps = 1\n")
    (repository / "binary.toml").write_bytes(bytes(range(256)))
    os.mkfifo(repository / "pipe.toml")
    with open(repository / "huge.toml", "wb") as file:
        file.truncate(2**27)
    for arguments in (("a.toml", word), (word, "a.toml")):
        done = _config(repository, "diff", *arguments)
        assert done.returncode == code, done.stderr
        assert what in done.stderr
        assert [part for part in ("error:", "  what", "  why", "  fix") if part not in done.stderr] == []
        assert done.stdout == ""


def test_a_revision_that_is_an_option_is_refused(repository: Path) -> None:
    done = _config(repository, "show", "--", "--textconv:a.toml")
    assert done.returncode == 2
    assert "a revision does not begin with -" in done.stderr
