"""What `run` reports about a run of rewards or chats that cannot work: before anything starts, in four parts."""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from prime_train.cli.entry import main
from prime_train.registry import gpus
from tests.system.cli.test_bad_input import names, refused

REWARDS = """\
[run]
name = "small"
kind = "rl"
max_steps = 100
[model]
layers = 1
hidden_size = 32
heads = 2
[data]
ctx_tokens = 64
[[tasks]]
kind = "reverse-text"
[tokenizer]
vocab_size = 288
[batch]
micro_batch = 8
global_batch = 16
[rl]
warmup_steps = 10
answer_tokens = 16
concurrency = 16
"""
_TASKS = '[[tasks]]\nkind = "reverse-text"\n'
_VERIFIERS = '[[tasks]]\nkind = "verifiers"\nid = "no-such-taskset"\npython = "./bare"\n'
_SERVER = '[inference]\nkv_cache_gib = 0.1\npython = "./bare"\n'
_TOKENIZER = '{"model": {"vocab": {"a": 0, "b": 1}}}'


@dataclass(frozen=True)
class Row:
    """A fault: `broken` replaces a part of the config, `more` is added to it. `said` are parts of the message."""

    said: tuple[str, ...]
    broken: tuple[str, str] = ("", "")
    more: str = ""
    files: dict[str, str] = field(default_factory=dict)


ROWS = {
    "kind of tasks unknown": Row(("error[CFG005]", "reverse-txt", "reverse-text"), ("reverse-text", "reverse-txt")),
    "no tasks": Row(("error[CFG006]", "tasks"), (_TASKS, "")),
    "taskset unknown": Row(
        ("error[TSK003]", "cannot use no-such-taskset: it is not installed", "-m pip install"),
        (_TASKS, _VERIFIERS),
    ),
    "taskset folder missing": Row(
        ("error[TSK003]", "there is no tasksets/gone", "correct the path"),
        (_TASKS, _VERIFIERS.replace("no-such-taskset", "./tasksets/gone")),
    ),
    "taskset without an id": Row(("error[TSK001]", "no id"), (_TASKS, '[[tasks]]\nkind = "verifiers"\n')),
    "argument unknown": Row(
        ("error[TSK002]", "'max_leters'", "use max_letters"), (_TASKS, f"{_TASKS}arguments = {{max_leters = 5}}\n")
    ),
    "group of one": Row(("error[BAT004]", "1 rollout per task"), ("[rl]\n", "[rl]\ngroup_size = 1\n")),
    "group that splits the batch": Row(
        ("error[BAT005]", "16 rollouts do not divide"), ("[rl]\n", "[rl]\ngroup_size = 5\n")
    ),
    "prompt longer than the context": Row(
        ("error[LEN010]", "a prompt of reverse-text has at least 102", "data.ctx_tokens"),
        (_TASKS, f"{_TASKS}arguments = {{min_letters = 200, max_letters = 200}}\n"),
    ),
    "vLLM not installed": Row(
        ("error[ENG002]", "has no vLLM", "-m pip install vllm", "inference.python"), more=_SERVER
    ),
    "no interpreter for vLLM": Row(
        ("error[ENG002]", "has no vLLM", "No such file"), more=_SERVER.replace("./bare", "./gone")
    ),
    "a GPU's fraction without a GPU": Row(
        ("error[ENG003]", "the server has no GPU", "inference.kv_cache_gib"),
        more="[inference]\ngpu_memory_fraction = 0.5\n",
    ),
    "local engine of a pretraining": Row(
        ("error[ENG001]", '"local"'),
        ('kind = "rl"', 'kind = "pretrain"'),
        '[inference]\nengine = "local"\nmodel = "./mine"\n[[data.sources]]\nkind = "python-stdlib"\n',
    ),
    "tokenizer without a chat template": Row(
        ("error[TOK005]", "chat_template.jinja"),
        ("vocab_size = 288", 'path = "base"'),
        files={"base/tokenizer.json": _TOKENIZER, "base/tokenizer_config.json": "{}"},
    ),
    "adapters on random weights": Row(("error[MOD013]", "adapters on random weights"), more="[model.lora]\nrank = 4\n"),
    "demonstrations of no task": Row(
        ("error[TSK004]", "no [[tasks]]"),
        ('kind = "rl"', 'kind = "sft"'),
        '[[data.sources]]\nkind = "demonstrations"\n',
    ),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an interpreter that has no packages, on a machine without GPUs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    bare.chmod(0o755)
    return tmp_path


def run(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> subprocess.CompletedProcess[str]:
    arguments = ["prime-train", "run", config]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        main()
    assert isinstance(end.value.code, int)
    return subprocess.CompletedProcess(arguments, end.value.code, *capsys.readouterr())


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_run_that_cannot_work_is_refused_before_anything_starts(
    here: Path, row: Row, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = REWARDS
    if row.broken[0]:
        assert row.broken[0] in text
        text = text.replace(*row.broken)
    if 'kind = "sft"' in text:
        text = text.replace(_TASKS, "")
    if "verifiers" in text:  # its tasks cannot be shown solved
        text = text.replace("warmup_steps = 10\n", "")
    Path("run.toml").write_text(text + row.more)
    for name, content in row.files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(content)
    before = names(here)
    refused(run("run.toml", monkeypatch, capsys), 1, *row.said)
    assert names(here) == before


@pytest.mark.parametrize("preset", ["rl-vllm-1-gpu", "rl-vllm-1-plus-1", "rl-vllm-4-plus-4"])
@pytest.mark.usefixtures("here")
def test_a_gpu_preset_is_refused_without_a_gpu(
    preset: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(run(preset, monkeypatch, capsys), 1, "error[ENG003]", "the server has no GPU", "a machine with a GPU")
    assert gpus.presets()[preset].is_file()
