"""Random secrets of the environment, of a config and of the hub's files reach nothing that prime-train writes or shows.

The exceptions are copies of the user's own config: config.toml, and resolved.json, which the trainer reads.
"""

from __future__ import annotations

import contextlib
import json
import random
import string
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from prime_train.core.errors import ExitCode
from tests import fork_server
from tests.unit.cli import small
from tests.unit.cli.commands import PROGRAM, clean_environment, prime_train

NAMES = ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD", "GITHUB_TOKEN", "OWN_WEBHOOK_URL")
_LETTERS = string.ascii_letters + string.digits
_ODD = _LETTERS + "\"'\\$%&/+=ä"
_EXTRAS = """
[prime_train.wandb]
project = "tests"
mode = "offline"

[prime_train.backup]
provider = "local"
bucket = "bucket"

[prime_train.alerts]
command = ["cat"]
"""
_COMMANDS = (
    ("lint", "run.toml"),
    ("run", "run.toml", "--dry-run", "--no-validate"),
    ("run", "run.toml", "--slurm", "--dry-run"),
    ("run", "quickstart", "--spot", "--dry-run", "--bucket", "mine"),
    ("run", "run.toml", "--spot", "--dry-run", "--bucket", "mine"),  # refused: it holds a secret
    ("run", "missing.toml"),
    ("backup", "status", "no-such-run"),
    ("status", "--wandb", "me/no/where"),
    ("validate", "run.toml", "--offline"),
)
_COPIES = frozenset({"config.toml", "resolved.json"})


@settings(max_examples=1, phases=[Phase.generate])  # a smaller secret is one that stands in other files, too
@given(st.randoms(use_true_random=True))
def test_random_secrets_are_in_nothing_that_is_written_or_shown(chance: random.Random) -> None:
    variables = {name: _draw(chance, _ODD) for name in NAMES}
    in_config, in_hub_file = (f"hf_{_draw(chance, _LETTERS)}" for _ in range(2))  # known by their form
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        small.write(folder)
        config = small.CONFIG.replace('"the "', f'"the ", "{in_config}"')
        (folder / "run.toml").write_text(config + _EXTRAS, encoding="utf-8")
        (folder / "bucket").mkdir()
        hub = folder / "hub"
        hub.mkdir()
        (hub / "token").write_text(in_hub_file, encoding="utf-8")
        environment = variables | {
            "HF_HOME": str(hub),
            "WANDB_BASE_URL": "http://127.0.0.1:9",
            "XDG_CONFIG_HOME": str(folder / "xdg"),
            **fork_server.variables(),
        }
        hidden = (*variables.values(), in_config, in_hub_file)
        found = _train(folder, environment, hidden)
        for command in (*_COMMANDS, ("report", "small"), ("logs", "small"), ("status", "small", "--json")):
            found |= _find(" ".join(command), _run(command, folder, environment), hidden)
        for path in _written(folder, hub):
            found |= _find(str(path), path.read_bytes(), hidden)
        assert not found


def _draw(chance: random.Random, letters: str) -> str:
    return "".join(chance.choices(letters, k=chance.randint(20, 48)))


def _train(folder: Path, environment: dict[str, str], hidden: tuple[str, ...]) -> set[tuple[str, str]]:
    """Run the training. Returns the secrets in the arguments of its processes; its output is in a file."""
    found: set[tuple[str, str]] = set()
    with open(folder / "console", "wb") as console:
        process = subprocess.Popen(
            [PROGRAM, "run", "run.toml", "--no-validate"],
            cwd=folder,
            env=clean_environment() | environment,
            stdout=console,
            stderr=subprocess.STDOUT,
        )
        ended = False
        while not ended:
            for arguments in _arguments(process.pid):
                found |= _find("argv", arguments.encode(), hidden)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
                ended = True
    assert process.returncode == ExitCode.OK, (folder / "console").read_text()
    return found


def _arguments(pid: int) -> Iterator[str]:
    try:
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            yield json.dumps(process.cmdline(), ensure_ascii=False)
    except psutil.Error:
        return


def _run(command: tuple[str, ...], folder: Path, environment: dict[str, str]) -> bytes:
    done = prime_train(*command, cwd=folder, **environment)
    assert done.returncode != ExitCode.BUG, done.stderr
    return (done.stdout + done.stderr).encode()


def _written(folder: Path, hub: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and hub not in path.parents and path != folder / "run.toml" and path.name not in _COPIES:
            yield path


def _find(place: str, text: bytes, hidden: tuple[str, ...]) -> set[tuple[str, str]]:
    forms = ((secret, form) for secret in hidden for form in {secret, json.dumps(secret)[1:-1]})
    return {(place, secret) for secret, form in forms if form.encode() in text}
