"""A folder with modules named like Python's and our own: no command imports one, from it or about it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from prime_train.core.python_child import own_module
from tests.unit.cli import small
from tests.unit.cli.commands import PROGRAM, clean_environment
from tests.unit.views.written_runs import WHOLE_LIFE, write_metrics, write_run

NAMES = (
    *("abc", "argparse", "asyncio", "base64", "collections", "contextlib", "copy", "csv", "dataclasses", "datetime"),
    *(
        "enum",
        "errno",
        "functools",
        "hashlib",
        "heapq",
        "http",
        "inspect",
        "io",
        "itertools",
        "json",
        "logging",
        "math",
    ),
    *("operator", "os", "pathlib", "pickle", "platform", "queue", "random", "re", "selectors", "shutil", "signal"),
    *("socket", "string", "struct", "subprocess", "tempfile", "threading", "time", "types", "typing", "warnings"),
    *("tomli", "typer", "rich", "pydantic", "psutil", "pynvml", "huggingface_hub", "torch", "numpy", "safetensors"),
    *("tokenizers", "transformers", "jinja2", "prime_train", "sitecustomize", "usercustomize"),
)
_TRAP = "import os as _os\n_os.close(_os.open({marker!r}, _os.O_CREAT | _os.O_WRONLY))\nraise ImportError('trapped')\n"

COMMANDS = (
    ("lint",),
    ("lint", "run.toml"),
    ("lint", ".", "--output-format", "json"),
    ("rule", "BAT001"),
    ("validate", "run.toml"),
    ("validate", "run.toml", "--deep", "--offline"),
    ("estimate", "run.toml", "--gpus", "1xrtx4090"),
    ("find", "run.toml"),
    ("verify-model", ".", "--offline"),
    ("verify-model", ".", "--offline", "--json"),
    ("models", "list"),
    ("presets", "list"),
    ("prices", "show"),
    ("schema", "export"),
    ("run", "run.toml", "--dry-run"),
    ("run", "run.toml"),
    ("status",),
    ("status", "small", "--json"),
    ("logs", "small"),
    ("report", "small"),
    ("profile", "small"),
    ("diagnose", "small"),
    ("diagnose", "."),
    ("ckpt", "list", "small"),
    ("ckpt", "verify", "small"),
    ("ckpt", "to-hf", "small", "--output", "exported"),
    ("ckpt", "consolidate", "small", "--output", "whole"),
    ("ckpt", "prune", "small", "--dry-run"),
    ("ckpt", "compress", "small", "--dry-run"),
    ("runs",),
    ("runs", ".", "--json"),
    ("compare", "small", "--output", "curves.png"),
    ("config", "show", "run.toml", "--resolved"),
    ("config", "show", "small@1"),
    ("config", "show", "HEAD:./run.toml"),
    ("config", "diff", "run.toml", "small"),
    ("config", "save", "kept", "run.toml"),
    ("config", "list"),
    ("config", "history", "small"),
    ("config", "restore", "kept", "back.toml"),
    ("trainers", "list"),
    ("trainers", "show", "torchtitan"),
    ("trainers", "check", "train.log"),
    ("run", "--dry-run", "--", "torchrun", "--nproc-per-node", "1", "train.py"),
    ("run", "--dry-run", "--", "python", "-m", "transformers", "--output_dir", "out"),
    ("run", "--run-name", "told", "--", "sh", "-c", "cat train.log"),
    ("logs", "told"),
    ("report", "told"),
    ("diagnose", "train.log"),
    ("backup", "status", "small"),
    ("stop", "small"),
    ("init", "--model", ".", "--task", "sft", "--data", "text", "--gpus", "1xrtx4090", "--yes", "--dry-run"),
    ("init", "--command", "torchrun train.py", "--yes", "--dry-run"),
    ("monitor", "run.toml", "--wandb", "a/b/c", "--dry-run"),
    ("init", "--github-actions", "--dry-run"),
)
MODEL = '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 1, '
MODEL += '"num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 300}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is a project, a model and a home, with a trap for each name in it."""
    root = tmp_path_factory.mktemp("hostile")
    small.write(root)
    (root / "config.json").write_text(MODEL, encoding="utf-8")
    (root / "train.py").write_text("import transformers\n", encoding="utf-8")
    (root / "train.log").write_text("{'loss': 2.5, 'grad_norm': 1.0, 'learning_rate': 1e-05, 'epoch': 0.1}\n")
    for name in NAMES:
        text = _TRAP.format(marker=str(root / f"ran-{name}"))
        (root / f"{name}.py").write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_runs_what_lies_in_its_folder(folder: Path, command: tuple[str, ...]) -> None:
    environment = clean_environment() | {"HOME": str(folder), "HF_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [PROGRAM, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert sorted(path.name for path in folder.glob("ran-*")) == [], done.stderr
    assert done.returncode != 3, done.stderr
    run_dir = folder / "runs" / "small"
    if command == ("run", "run.toml"):
        assert done.returncode == 0, done.stderr
        for name in NAMES:  # the commands after it look at the run directory
            shutil.copyfile(folder / f"{name}.py", run_dir / f"{name}.py")


@pytest.mark.parametrize("kind", ["file", "pipe"])
def test_no_plot_obeys_the_settings_of_its_folder(tmp_path: Path, kind: str) -> None:
    """A name that is a formula with a fault is a name, too."""
    for name in ("small", "$\\frac{$"):
        write_metrics(write_run(tmp_path / "runs" / name, WHOLE_LIFE), 60)
    if kind == "pipe":
        os.mkfifo(tmp_path / "matplotlibrc")
    else:
        (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfigure.dpi: 1\n", encoding="utf-8")
    environment = clean_environment() | {"HOME": str(tmp_path)}
    for command in (["report", "$\\frac{$"], ["compare", "small", "$\\frac{$", "--output", "curves.png"]):
        done = subprocess.run(
            [PROGRAM, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "$\\frac{$" / "plots" / "loss.png").exists()


def test_the_key_of_wandb_goes_to_no_server_that_a_folder_names(tmp_path: Path) -> None:
    """The settings of the user name one server, those of the folder another."""
    with socket.create_server(("127.0.0.1", 0)) as named_by_user, socket.create_server(("127.0.0.1", 0)) as by_folder:
        for folder, server in ((tmp_path / "config", named_by_user), (tmp_path / "here" / "wandb", by_folder)):
            folder.mkdir(parents=True)
            address = f"http://127.0.0.1:{server.getsockname()[1]}"
            (folder / "settings").write_text(f"[default]\nbase_url = {address}\n", encoding="utf-8")
            server.settimeout(0)
        hidden = ("WANDB_BASE_URL", "WANDB_MODE", "NETRC")
        environment = {name: value for name, value in clean_environment().items() if name not in hidden}
        environment |= {"WANDB_CONFIG_DIR": str(tmp_path / "config"), "WANDB_API_KEY": "0" * 40, "HOME": str(tmp_path)}
        subprocess.run(
            own_module("prime_train.away.verdict.wandb_program"),
            cwd=tmp_path / "here",
            env=environment,
            input=b'{"path": "a/b/c", "request_s": 1}',
            capture_output=True,
            timeout=240,
            check=False,
        )
        with pytest.raises(BlockingIOError):
            by_folder.accept()
        named_by_user.accept()[0].close()


def test_a_python_that_imports_from_its_folder_would_be_noticed(folder: Path, tmp_path: Path) -> None:
    """The traps work: a plain `python -m` runs one."""
    for path in folder.glob("*.py"):
        text = path.read_text(encoding="utf-8").replace(str(folder), str(tmp_path))
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    interpreter = Path(PROGRAM).with_name("python")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    subprocess.run(
        [interpreter, "-m", "ast"], cwd=tmp_path, env=environment, input=b"", capture_output=True, check=False
    )
    assert list(tmp_path.glob("ran-*"))


def test_a_plan_without_validation_starts_no_interpreter_of_the_config(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n", encoding="utf-8")
    interpreter.chmod(0o755)
    config = f'[run]\nname = "s"\nkind = "serve"\n[inference]\nmodel = "Qwen/Qwen3-0.6B"\npython = "{interpreter}"\n'
    (tmp_path / "run.toml").write_text(config, encoding="utf-8")
    command = [str(PROGRAM), "run", "run.toml", "--dry-run", "--no-validate"]
    done = subprocess.run(
        command, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(interpreter) in done.stdout
    assert not (tmp_path / "started").exists()
