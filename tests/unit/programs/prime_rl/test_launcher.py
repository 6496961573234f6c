from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.core.errors import ExitCode, UserError
from prime_train.programs.prime_rl.launcher import find_launcher
from prime_train.programs.prime_rl.sources import Tails, name_part, name_writer
from tests.fakes.prime_rl_launcher import install


def test_it_is_the_one_beside_the_interpreter_that_is_named(tmp_path: Path) -> None:
    python = install(tmp_path / "env")
    found = find_launcher("rl", "env/bin/python", {}, tmp_path, "rl.toml")
    assert found == python.parent / "rl"


def test_else_it_is_on_path_and_really_prime_rls(tmp_path: Path) -> None:
    other, ours = tmp_path / "other", install(tmp_path / "env").parent
    other.mkdir()
    (other / "rl").write_text("#!/bin/sh\nshuf\n")
    (other / "rl").chmod(0o755)
    path = f"{other}:{ours}"
    assert find_launcher("rl", None, {"PATH": path}, tmp_path, "rl.toml") == ours / "rl"
    with pytest.raises(UserError, match="not prime-rl"):
        find_launcher("rl", None, {"PATH": str(other)}, tmp_path, "rl.toml")


def test_else_it_is_in_the_environment_of_the_project_at_hand(tmp_path: Path) -> None:
    ours = install(tmp_path / ".venv").parent
    below = tmp_path / "configs" / "words"
    below.mkdir(parents=True)
    assert find_launcher("sft", None, {"PATH": "/nowhere"}, below, "sft.toml") == ours / "sft"


def test_where_it_is_not_installed_the_message_names_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        find_launcher("rl", None, {"PATH": "/nowhere"}, tmp_path, "rl.toml")
    assert raised.value.exit_code == ExitCode.OUT_OF_REACH
    assert "[prime_train] python" in raised.value.fix
    with pytest.raises(UserError) as raised:
        find_launcher("rl", "bin/python", {}, tmp_path, "rl.toml")
    assert raised.value.where == str(tmp_path / "bin" / "rl")


def test_parts_are_known_by_command_or_title() -> None:
    assert name_part(["/v/bin/python", "/v/bin/inference", "@", "configs/inference.json"]) == "inference"
    assert name_part(["uv", "run", "inference", "@", "x.toml"]) == "inference"
    assert name_part(["/v/bin/python", "/v/bin/rl", "@", "/runs/a/attempts/001/prime_rl.toml"]) == "launcher"
    assert name_part(["PRIME-RL::Launcher"]) == "launcher"
    assert name_part(["/v/bin/python", "-m", "prime_rl.entrypoints.inference", "@", "x.json"]) == "inference"
    assert name_part(["PRIME-RL::Inference"]) == "inference"
    assert name_part(["PRL::EnvServer"]) == "env server"
    assert name_part(["/v/bin/env-server", "@", "/o/configs/envs/train/words.json"]) == "env server words"
    assert name_part(["/v/bin/env-server", "@", "/o/configs/env_server_eval_a/b.toml"]) == "env server a/b"
    assert name_part(["/v/bin/python", "/v/bin/orchestrator", "@", "configs/inference.json"]) == "other"
    assert name_part(["PRIME-RL::Trainer"]) == "other"
    assert (
        name_part(["tail", "-F", "orchestrator.log"])
        == name_part(["/bin/sh", "-c", "tail -F 'o/orchestrator.log'"])
        == "tail"
    )
    assert name_part([]) == "other"


def test_a_log_belongs_to_the_part_that_writes_it() -> None:
    launcher = Path("/runs/a/attempts/001/prime_rl.log")
    assert name_writer(launcher, launcher) == "launcher"
    assert name_writer(Path("/o/logs/attempt_1/trainer.log"), launcher) == "trainer"
    assert name_writer(Path("/o/logs/orchestrator.stdout"), launcher) == "orchestrator"
    assert name_writer(Path("/o/logs/latest/envs/train/a/b.log"), launcher) == "env server a/b"


def test_logs_are_followed_at_a_bounded_cost(tmp_path: Path) -> None:
    log, metrics = tmp_path / "trainer.log", tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1, "loss/mean": 1.0}\n')
    tails = Tails(metrics, tmp_path / "prime_rl.log")
    assert tails.take_rows() == ()  # of an earlier attempt
    with open(log, "wb") as file:
        for number in range(3):
            file.write(b"noise without a word\n" * 100_000)
            file.write(f"Step {number} | 1s | Loss 1.0 | LR 1\n".encode())
        file.write(b"Step 3 | 1s | Loss 1.0")
    tails.follow([log, tmp_path / "torchrun" / "stdout.log"])
    found = [what for _ in range(4) for what in tails.take_messages()]
    assert [who for who, _ in found] == ["trainer"] * 3
    with open(log, "ab") as file:
        file.write(b" | LR 1\n")
    assert len(tails.take_messages()) == 1
    log.write_text("Step 9 | 1s | Loss 1.0 | LR 1\n")  # cut, and begun anew
    assert len(tails.take_messages()) == 1
    with open(metrics, "a", encoding="utf-8") as file:
        file.write('{"step": 2, "loss/mean": 1.0}\n{"step": 3')
    assert [row.step for row in tails.take_rows()] == [2]
