"""Commands that need an extra which is not installed: a message of four parts, and nothing is started."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train.bus import nats_server
from prime_train.core.errors import ExitCode, UserError
from tests.unit.cli import small
from tests.unit.cli.commands import DEADLINE_S, clean_environment

_MAIN = "import sys; sys.modules.update(dict.fromkeys({hidden!r})); from prime_train.cli.entry import main; main()"
_MACHINES = ("--set", "parallel.processes=2", "--set", "parallel.machines=2", "--machine-rank", "0")
_TWO = (*_MACHINES, "--machine-addresses", "127.0.0.1,127.0.0.2")
_RUN = ("run", "run.toml", "--no-validate")


def run_without(hidden: tuple[str, ...], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in a Python that does not find some packages."""
    command = [sys.executable, "-c", _MAIN.format(hidden=hidden), *words]
    return subprocess.run(
        command, cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


@pytest.mark.parametrize(
    ("hidden", "words", "what", "extra"),
    [
        (("nats", "cryptography"), (*_RUN, *_TWO), "not installed: nats-py, cryptography", "machines"),
        (("cryptography",), (*_RUN, *_TWO), "not installed: cryptography", "machines"),
        (("nats",), (*_RUN, "--bus", "nats://127.0.0.1:4222"), "nats-py is not installed", "control"),
        (("nats",), ("control", "--bus", "nats"), "nats-py is not installed", "control"),
        (("nats",), ("top", "--once", "--bus", "tls://10.0.0.5:4222"), "nats-py is not installed", "control"),
        (("starlette", "plotly"), ("control",), "starlette, plotly are not installed", "control"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, hidden: tuple[str, ...], words: tuple[str, ...], what: str, extra: str
) -> None:
    small.write(tmp_path)
    done = run_without(hidden, tmp_path, *words)
    assert done.returncode == ExitCode.OUT_OF_REACH, done.stdout + done.stderr
    assert what in done.stderr
    assert f"[{extra}]'" in done.stderr
    for part in ("error: ", "  what  ", "  why   ", "  fix   "):
        assert part in done.stderr
    assert not list(tmp_path.glob("runs/*/attempts")), "no attempt"
    assert not (tmp_path / "runs" / ".control").exists(), "no server"


@pytest.mark.parametrize("extra", ["control", "machines"])
def test_a_missing_server_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, extra: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(UserError, match="nats-server is not installed") as caught:
        nats_server.find_binary("--bus nats", extra)
    assert f"[{extra}]'" in caught.value.fix
    assert caught.value.exit_code == ExitCode.OUT_OF_REACH
