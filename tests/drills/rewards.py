"""Small runs that learn from rewards, with a built-in environment or a taskset that harms them. Judges nothing."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from prime_train.trainer.chats.chat_template import BUILT_IN
from prime_train.trainer.chats.chat_tokenizer import CONTROL
from prime_train.trainer.tokenizer import train_bpe
from tests import fork_server
from tests.drills.scene import PROGRAM, REPOSITORY, Scene

WARMUP_STEPS, INTERVAL_STEPS, MAX_STEPS = 16, 8, 40
FIRST_STEP = WARMUP_STEPS + 1  # with rollouts

_CONFIG = f"""
[run]
name = "drill"
kind = "rl"
max_steps = {MAX_STEPS}

[model]
layers = 1
hidden_size = 32
heads = 2

[data]
ctx_tokens = 64

[batch]
micro_batch = 8
global_batch = 16

[rl]
group_size = 4
answer_tokens = 6
concurrency = 8
mask_truncated = false
"""
_REST = f"""
[optim]
lr = 1e-2
weight_decay = 0.0

[schedule]
kind = "constant"
warmup_steps = 0

[checkpoint]
interval_steps = {INTERVAL_STEPS}

[eval]
interval_steps = 1000
tasks = 4
"""
_BUILT_IN = f"""warmup_steps = {WARMUP_STEPS}

[[tasks]]
kind = "reverse-text"
arguments = {{ min_letters = 2, max_letters = 3 }}

[tokenizer]
vocab_size = 288
"""
_TASKSET = """warmup_steps = 0

[[tasks]]
kind = "verifiers"
id = "harmful"
python = "./taskset_python"
limit_s = {limit_s}
arguments = {{ fault = "{fault}", marker = "{folder}/marker" }}

[tokenizer]
path = "tokenizer"
"""
_VLLM = """
[inference]
engine = "vllm"
python = "./vllm_python"
port = {port}
dtype = "float32"
ready_limit_s = 100.0
"""


def _format_taskset(fault: str, folder: Path) -> str:
    """Only an answer that never comes has a short limit: on a busy machine others may take a second."""
    return _TASKSET.format(fault=fault, folder=folder, limit_s=1.0 if "hangs" in fault else 60.0)


def drill_of_rewards(folder: Path, cache: Path, options: Mapping[str, str], variables: Mapping[str, str]) -> Scene:
    """`prime-train run run.toml`. `options`: settings by their names, and besides

    "taskset": a fault of taskset.py, instead of the built-in environment.
    "server": a fault of policy_program.py, the stand-in for vLLM; "" = none.
    "harm": what happens to the first attempt of the trainer; see hooks/harm.py.
    """
    taskset, server = options.get("taskset"), options.get("server")
    tasks = _BUILT_IN if taskset is None else _format_taskset(taskset, folder)
    config = _CONFIG + tasks + _REST + (_VLLM.format(port=_find_port()) if server is not None else "")
    settings = [f"--set={name}={value}" for name, value in options.items() if "." in name]
    files = {
        "run.toml": config,
        "taskset_python": _interpreter("taskset.py"),
        "vllm_python": _interpreter("policy_program.py"),
    }
    own = _variables(folder, cache) | {"DRILL_HARM": options.get("harm", ""), "DRILL_SERVER": server or ""}
    return Scene(folder, (str(PROGRAM), "run", "run.toml", "--no-validate", *settings), files, {**own, **variables})


def _variables(folder: Path, cache: Path) -> dict[str, str]:
    """The environment of a drill without a fault."""
    return {
        "PRIME_TRAIN_CACHE": str(cache),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY / 'tests' / 'drills' / 'hooks'}",
        "DRILL_HARM": "",
        "DRILL_FOLDER": str(folder),
        "FORK_COMMAND": fork_server.interpreter(),
    }


_SERVED = """
[run]
name = "drill"
max_steps = 8

[model]
layers = 1
hidden_size = 32
heads = 2

[data]
ctx_tokens = 64

[[data.sources]]
kind = "files"
path = "text.txt"

[tokenizer]
vocab_size = 288

[batch]
micro_batch = 4

[checkpoint]
interval_steps = 4

[eval]
interval_steps = 4
tasks = 4
task_tokens = 6

[[tasks]]
kind = "reverse-text"
"""


def drill_of_served_tasks(folder: Path, cache: Path, server: str) -> Scene:
    """A pretraining whose tasks are answered by policy_program.py. `server`: its fault."""
    files = {
        "run.toml": _SERVED + _VLLM.format(port=_find_port()),
        "text.txt": "".join(f"say the number {number}\n" for number in range(4000)),
        "vllm_python": _interpreter("policy_program.py"),
    }
    variables = _variables(folder, cache) | {"DRILL_SERVER": server}
    return Scene(folder, (str(PROGRAM), "run", "run.toml", "--no-validate"), files, variables)


def write_tokenizer(scene: Scene) -> None:
    """The tokenizer of a run whose tasks cannot be shown solved."""
    folder = scene.folder / "tokenizer"
    folder.mkdir()
    texts = ("say the number" + f" {number}" for number in range(400))
    train_bpe(texts, 288, folder, CONTROL)
    (folder / "chat_template.jinja").write_text(BUILT_IN, encoding="utf-8")
    config = {"eos_token": CONTROL.eos, "chat_template": BUILT_IN}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def _interpreter(program: str) -> str:
    """A script that takes the arguments of a Python and runs `program` with them."""
    path = f"{REPOSITORY}/src:{REPOSITORY}"
    return f'#!/bin/sh\nPYTHONPATH={path} exec {sys.executable} {REPOSITORY}/tests/drills/{program} "$@"\n'


def _find_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
