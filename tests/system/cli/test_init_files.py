"""`init` by flags: what it writes, what it refuses to write, and what it says of bad input."""

from __future__ import annotations

import importlib
import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.fakes.model_folder import write_model
from tests.unit.cli.commands import prime_train

_RL = ("--task", "rl", "--env", "reverse-text", "--gpus", "1xrtx4090", "--offline", "--yes")
_SFT = ("--task", "sft", "--gpus", "1xrtx4090", "--offline", "--yes")
_SMALL = ("--model", "Qwen/Qwen3-0.6B")


def _write_chats(path: Path, count: int = 40) -> Path:
    turns = [{"role": "user", "content": "Reverse: abc"}, {"role": "assistant", "content": "cba"}]
    path.write_text("".join(json.dumps({"messages": turns, "id": n}) + "\n" for n in range(count)), encoding="utf-8")
    return path


def _assert_four_parts(text: str) -> None:
    assert text.startswith("error: ") or "\nerror: " in text
    assert all(f"  {part}  " in text for part in ("what", "why ", "fix ")), text


def test_a_model_of_four_billion_learns_from_rewards_on_one_rtx_4090(tmp_path: Path) -> None:
    done = prime_train("init", "--model", "Qwen/Qwen3-4B", *_RL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "run.toml").read_text(encoding="utf-8")
    assert "fits: trainer" in done.stderr
    linted = prime_train("lint", "run.toml", cwd=tmp_path)
    assert (linted.returncode, linted.stdout + linted.stderr) == (0, "1 file is clean\n")
    judged = prime_train("validate", "run.toml", "--gpus", "1xrtx4090", "--offline", cwd=tmp_path)
    assert (judged.returncode, "All checks passed" in judged.stdout) == (0, True)
    estimated = prime_train("estimate", "run.toml", "--gpus", "1xrtx4090", "--offline", "--json", cwd=tmp_path)
    assert json.loads(estimated.stdout)["memory"]["verdict"] == "fits"


@pytest.mark.parametrize("task", ["pretrain", "sft", "rl"])
def test_a_config_of_a_model_folder_passes_lint_and_validate(tmp_path: Path, task: str) -> None:
    write_model(tmp_path / "model")
    data = _write_chats(tmp_path / "chats.jsonl")
    if task == "pretrain":
        data = tmp_path / "text.jsonl"
        data.write_text("".join(json.dumps({"body": "some words " * 30}) + "\n" for _ in range(400)), encoding="utf-8")
    given = ("--env", "calculator") if task == "rl" else ("--data", data.name)
    flags = ("--task", task, "--model", "model", "--gpus", "2xh100", *given, "--offline", "--yes")
    done = prime_train("init", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    if task != "rl":
        assert f"of {data.name} have" in done.stderr
    judged = prime_train("validate", "run.toml", "--gpus", "2xh100-80gb", "--offline", cwd=tmp_path)
    assert judged.returncode == 0, judged.stdout
    assert prime_train("lint", "run.toml", "--strict", cwd=tmp_path).returncode == 0


def test_the_document_has_each_setting_with_its_reason(tmp_path: Path) -> None:
    done = prime_train("init", *_SMALL, *_RL, "--json", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {setting["key"] for setting in document["settings"] if setting["why"]} >= {"batch.micro_batch", "optim.lr"}
    assert document["estimate"]["memory"]["verdict"] == "fits"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_differs_is_replaced_only_with_force(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text("# mine\n", encoding="utf-8")
    done = prime_train("init", *_SMALL, *_RL, cwd=tmp_path)
    assert done.returncode == 1
    _assert_four_parts(done.stderr)
    assert config.read_text(encoding="utf-8") == "# mine\n"
    assert prime_train("init", *_SMALL, *_RL, "--force", cwd=tmp_path).returncode == 0
    assert prime_train("init", *_SMALL, *_RL, cwd=tmp_path).returncode == 0  # the same text


def test_a_link_is_never_written_through(tmp_path: Path) -> None:
    (tmp_path / "run.toml").symlink_to(tmp_path / "elsewhere.toml")
    done = prime_train("init", *_SMALL, *_RL, "--force", cwd=tmp_path)
    assert done.returncode == 1
    _assert_four_parts(done.stderr)
    assert not (tmp_path / "elsewhere.toml").exists()


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ((), "--task, --model, --gpus, --yes"),
        (("--task", "sft", *_SMALL), "--gpus, --data"),
        (("--yes", "--task", "rl"), "--gpus, --env"),
    ],
)
def test_without_a_terminal_the_missing_flags_are_named(tmp_path: Path, given: tuple[str, ...], missing: str) -> None:
    done = prime_train("init", *given, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    _assert_four_parts(done.stderr)
    assert missing in done.stderr


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ((*_RL, "--model", "Qwen/Qwen3-0.6"), 4, "did you mean Qwen/Qwen3-0.6B"),
        ((*_RL, "--model", "./nowhere"), 2, "nowhere"),
        ((*_RL, *_SMALL, "--gpus", "1xh1000"), 2, "h100-80gb"),
        ((*_RL, *_SMALL, "--gpus", "0xh100-80gb"), 2, "0 GPUs"),
        ((*_RL, *_SMALL, "--task", "sftt"), 2, "did you mean sft"),
        ((*_RL, *_SMALL, "--task", "audi"), 2, "did you mean audio"),
        ((*_RL, *_SMALL, "--env", "revers-text"), 2, "did you mean reverse-text"),
        ((*_RL, *_SMALL, "--env", "owner/quite-unheard-of"), 2, "--turns single"),
        ((*_RL, *_SMALL, "--env", "wordle", "--tools", "cloud"), 2, "sandbox"),
        ((*_RL, *_SMALL, "--trainer", "trl"), 2, "bundled"),
        ((*_SFT, *_SMALL, "--data", "gone.jsonl"), 1, "there is no such file"),
        ((*_RL, *_SMALL, "--budget-usd", "0"), 2, "above zero"),
        ((*_RL, "--model", "google/gemma-2-2b-it", "--trainer", "bundled"), 1, "Gemma2ForCausalLM"),
        ((*_RL, "--model", "Qwen/Qwen3-32B", "--gpus", "1xt4"), 1, "does not fit on 1xt4"),
    ],
)
def test_bad_input_has_four_parts(tmp_path: Path, flags: tuple[str, ...], code: int, words: str) -> None:
    done = prime_train("init", *flags, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    _assert_four_parts(done.stderr)
    assert words in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("broken.jsonl", '{"messages": [\n', "line 1 of broken.jsonl is no JSON object"),
        ("list.jsonl", "[1, 2]\n", "line 1"),
        ("empty.jsonl", "", "is empty"),
        ("text.jsonl", '{"text": "words"}\n', "--task pretrain"),
        ("table.csv", "a,b\n1,2\n", "no file of a known format"),
        ("plain.txt", "words\n", "no chats"),
        ("turns.jsonl", '{"conversations": [{"from": "human", "value": "a"}]}\n', "role and content"),
    ],
)
def test_data_of_another_format_is_refused(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    done = prime_train("init", *_SFT, *_SMALL, "--data", name, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    _assert_four_parts(done.stderr)
    assert words in done.stderr


def _write_parquet(path: Path, columns: dict[str, list[object]]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    importlib.import_module("pyarrow.parquet").write_table(pyarrow.table(columns), path)


def test_the_first_records_of_a_table_decide_its_columns(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "abc"}, {"role": "assistant", "content": "cba"}]
    _write_parquet(tmp_path / "chats.parquet", {"id": [b"1"] * 3, "conversation": [turns] * 3})
    done = prime_train("init", *_SFT, *_SMALL, "--data", "chats.parquet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "3 records of chats.parquet have id, conversation: chats, the longest with 6 characters" in done.stderr
    assert 'messages_field = "conversation"' in done.stdout
    _write_parquet(tmp_path / "words.parquet", {"source": ["web"] * 3, "body": ["some words"] * 3})
    pretrain = ("--task", "pretrain", "--data", "words.parquet", "--force")
    done = prime_train("init", *_SFT, *_SMALL, *pretrain, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'text_field = "body"' in done.stdout
    refused = prime_train("init", *_SFT, *_SMALL, "--data", "words.parquet", cwd=tmp_path)
    assert (refused.returncode, "--task pretrain" in refused.stderr) == (1, True)


def test_a_table_may_hold_numbers_that_json_has_not(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    large = pyarrow.array([2**64 - 1] * 2, pyarrow.uint64())
    numbers = {"score": [float("nan"), float("inf")], "large": large}
    _write_parquet(tmp_path / "words.parquet", {"text": ["some words"] * 2, **numbers})
    done = prime_train("init", *_SFT, *_SMALL, "--task", "pretrain", "--data", "words.parquet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 records of words.parquet have text, score, large: text in text" in done.stderr


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "table.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    done = prime_train("init", *_SFT, *_SMALL, "--data", "table.parquet", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    _assert_four_parts(done.stderr)
    assert "table.parquet cannot be read:" in done.stderr
    assert "write it again" in done.stderr


@pytest.mark.parametrize("flags", [("--trainer", "command", "--yes"), ("--json",)])
def test_a_command_becomes_a_config_that_supervises_it(tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "train.py").write_text("print('step 1')\n", encoding="utf-8")
    done = prime_train(
        "init", "--command", "torchrun --nproc-per-node 2 train.py", "--name", "mine", *flags, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "sizes are those of the command: they are not known here, so none is chosen" in done.stderr
    text = (tmp_path / "run.toml").read_text(encoding="utf-8")
    assert 'name = "mine"\nkind = "command"' in text
    assert "processes = 2" in text
    assert prime_train("lint", "run.toml", cwd=tmp_path).returncode == 0
    if "--json" in flags:
        document = json.loads(done.stdout)
        assert (document["trainer"], document["text"], document["estimate"]) == ("command", text, None)


def test_a_script_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = prime_train("init", "--command", "torchrun nothere.py", "--yes", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"nothere.py is not in {tmp_path}" in done.stderr


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--trainer", "command", "--yes"), 2, "missing: --command"),
        (("--command", "python 'x"), 2, "close the quote"),
        (("--command", " "), 2, "no word"),
        (("--command", "python x.py --api-key abcdefgh"), 2, "argument 3 of the command is a secret, or has one"),
        (("--command", "python x.py", "--gpus", "8xh100"), 2, "--gpus decides nothing of a command"),
        (("--command", "python x.py", "--trainer", "bundled"), 2, "--trainer decides nothing"),
    ],
)
def test_a_command_that_cannot_be_used_has_four_parts(
    tmp_path: Path, flags: tuple[str, ...], code: int, words: str
) -> None:
    done = prime_train("init", *flags, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    _assert_four_parts(done.stderr)
    assert words in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("generation", "commit"), [("2026-01", "e794fbe"), ("2026-05", "618de8a"), ("2026-08", "559b447")]
)
def test_the_lines_that_make_a_prime_rl_run_start_are_named(tmp_path: Path, generation: str, commit: str) -> None:
    flags = (*_RL, *_SMALL, "--gpus", "2xh100", "--trainer", generation)
    done = prime_train("init", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    steps = done.stderr[done.stderr.index(f"next: prime-rl {generation} has to be installed") :].splitlines()
    assert f"checkout --quiet {commit}" in steps[2]
    started = prime_train(*steps[-1].split()[1:], "--dry-run", cwd=tmp_path)
    assert "prime-rl/.venv/bin/rl" in started.stdout, started.stderr


def test_a_file_for_several_machines_is_submitted_without_our_table(tmp_path: Path) -> None:
    done = prime_train("init", *_RL, *_SMALL, "--gpus", "2x8xh100", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *_, copy, _, submit = done.stderr.splitlines()
    assert submit.strip() == "uv run --project prime-rl rl @ run.prime-rl.toml"
    subprocess.run(["sh", "-c", copy], cwd=tmp_path, check=True, timeout=30)
    both = [tomllib.loads((tmp_path / name).read_text("utf-8")) for name in ("run.toml", "run.prime-rl.toml")]
    assert both[0].pop("prime_train")
    assert both[0] == both[1]
