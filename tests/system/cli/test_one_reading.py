"""Each command that takes a config parses it once and judges it once, in this process and with the real functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer

from prime_train.cli import entry
from prime_train.cli.estimate.command import estimate
from prime_train.cli.find import find
from prime_train.cli.lint import files as lint_files
from prime_train.cli.lint.fix import Repair
from prime_train.cli.run.command import run
from prime_train.cli.validate import validate
from prime_train.config import detect
from prime_train.core.findings import Problem
from prime_train.rules import judge
from prime_train.rules.families import load_all
from prime_train.rules.rule import RULES, Rule
from prime_train.supervise.core import loop
from prime_train.toml.document import Document
from tests.fakes.prime_rl_launcher import install
from tests.fakes.prime_rl_launcher.config import config
from tests.unit.cli import small

RUN_TOML, PRIME_RL = "run.toml", "words.toml"
SMALL_MODEL = """{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 64,
"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 128,
"tie_word_embeddings": false, "max_position_embeddings": 4096}"""
Counts = Counter[str]


@pytest.fixture
def counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counts:
    """A folder with both kinds of config, and the number of calls of the functions that parse and judge."""
    small.write(tmp_path)
    install(tmp_path / "env")
    (tmp_path / PRIME_RL).write_text(config("sft", tmp_path / "env" / "bin" / "python"))
    (tmp_path / "config.json").write_text(SMALL_MODEL)
    monkeypatch.chdir(tmp_path)
    found: Counts = Counter()

    def count(owner: Any, name: str, label: str) -> None:
        real = getattr(owner, name)

        def wrapper(*arguments: Any, **options: Any) -> Any:
            found[label] += 1
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, wrapper)

    count(detect, "read", "parse")
    count(detect, "read_merged", "parse")
    count(Document, "parse", "document")
    count(judge, "judge", "judge")
    count(judge, "judge_config", "judge")
    load_all()
    for rule in list(RULES.values()):
        monkeypatch.setitem(RULES, rule.code, rule._replace(check=_counted(rule, found)))
    return found


def _counted(rule: Rule, found: Counts) -> Callable[..., Iterator[Problem | Any]]:
    def check(*arguments: Any) -> Iterator[Problem | Any]:
        found[rule.code] += 1
        return rule.check(*arguments)

    return check


def _end(command: Callable[..., object], *arguments: Any, **options: Any) -> None:
    """Runs a command to its end. Its exit code does not matter here."""
    with suppress(typer.Exit, SystemExit):
        command(*arguments, **options)


def _most_runs_of_a_rule(counts: Counts) -> int:
    return max((number for code, number in counts.items() if code in RULES), default=0)


def _lint_fast(path: str) -> None:
    assert entry._plain_lint(["lint", path]) is not None


def _fix(path: str) -> None:
    lint_files.check([path], repair=Repair(write=False))


def _dry_run(path: str) -> None:
    run([path], dry_run=True)


def _run(path: str) -> None:
    run([path])


def _estimate(path: str, **options: Any) -> None:
    estimate([path], **options)


def _validate(path: str) -> None:
    validate([path])


@pytest.mark.parametrize("path", [RUN_TOML, PRIME_RL])
@pytest.mark.parametrize("command", [_lint_fast, _fix, _validate, _dry_run, _run])
def test_a_command_parses_once_and_judges_once(
    command: Callable[[str], None], path: str, counts: Counts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "supervise", lambda *_: 0)  # what it starts reads resolved.json, not the config
    _end(command, path)
    assert (counts["parse"], counts["document"], counts["judge"]) == (1, 1, 1)
    assert _most_runs_of_a_rule(counts) == 1


@pytest.mark.parametrize("path", [RUN_TOML, PRIME_RL])
def test_a_run_that_is_supervised_reads_no_more(path: str, counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs of the test above may be refused: a machine without GPUs cannot run prime-rl."""
    supervised: list[object] = []

    def supervise(opened: object, *_: object) -> int:
        supervised.append(opened)
        return 0

    monkeypatch.setattr(loop, "supervise", supervise)
    _end(run, [path], no_validate=True)
    assert len(supervised) == 1
    assert (counts["parse"], counts["document"], counts["judge"]) == (1, 1, 1)


@pytest.mark.parametrize("path", [RUN_TOML, PRIME_RL])
@pytest.mark.parametrize("command", [_estimate, find])
def test_an_estimate_parses_once_and_judges_only_a_config_with_faults(
    command: Callable[..., None], path: str, counts: Counts
) -> None:
    options = {"gpus": "h100-80gb"} if command is _estimate else {}
    _end(command, path, model_config="config.json", offline=True, **options)
    assert (counts["parse"], counts["document"], counts["judge"]) == (1, 1, 0)
    faulty = Path("faulty.toml")
    faulty.write_text(Path(path).read_text() + "[optim]\nlr = 'x'\n")
    counts.clear()
    with pytest.raises(Exception, match="CFG"):
        command(str(faulty), model_config="config.json", offline=True, **options)
    assert (counts["parse"], counts["document"], counts["judge"]) == (1, 1, 1)
    assert _most_runs_of_a_rule(counts) == 1


@pytest.mark.parametrize(
    ("path", "override"), [(RUN_TOML, "run.max_steps=3"), (PRIME_RL, "max_steps=9"), (PRIME_RL, "ckpt.interval=5")]
)
def test_an_override_costs_no_second_reading(path: str, override: str, counts: Counts) -> None:
    _end(run, [path], overrides=[override], run_name="other", dry_run=True)
    assert (counts["parse"], counts["judge"]) == (1, 1)
    assert _most_runs_of_a_rule(counts) == 1


def test_a_run_is_refused_before_facts_are_gathered(counts: Counts, monkeypatch: pytest.MonkeyPatch) -> None:
    from prime_train.facts import gather

    monkeypatch.setattr(gather, "gather", lambda *_: pytest.fail("facts were gathered"))
    with pytest.raises(typer.Exit):
        run([RUN_TOML], overrides=["optim.lr='x'"], dry_run=True)
    assert (counts["parse"], counts["judge"]) == (1, 1)
