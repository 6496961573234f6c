"""Whatever a file holds, lint has a verdict on it: never a traceback, every finding inside the file."""

from __future__ import annotations

import contextlib
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.cli.lint.files import check, render
from prime_train.core.errors import UserError
from prime_train.registry import gpus
from prime_train.rules.fix import fix_text
from prime_train.rules.judge import Verdict, lint
from tests.hostile import LARGE_SCRIPTS, LARGE_TEXTS, SCRAPS, SCRIPT, broken, large_script, mutant

TEXTS = [path.read_text(encoding="utf-8") for path in gpus.presets().values()]


def _hold(text: str, path: str = "t.toml") -> Verdict:
    """Every promise that holds for any text at all."""
    verdict = lint(text, path)
    lines = re.split(r"\r\n|\r|\n", text) if path.endswith(".py") else text.split("\n")
    for finding in verdict.findings:
        span = finding.span
        assert 1 <= span.line <= span.end_line <= len(lines)
        assert 1 <= span.column <= len(lines[span.line - 1]) + 2
        assert finding.what
        assert finding.why
        assert finding.fix
    return verdict


def _show(file: Path, text: str, verdict: Verdict) -> None:
    """The verdict is rendered in each format, once as the command does it."""
    file.write_text(text, encoding="utf-8", newline="")
    check([str(file)])
    for output_format in ("json", "sarif"):
        render([verdict], output_format, {})


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(SCRAPS), st.text(max_size=4)), max_size=30))
def test_any_scraps(scraps: list[str]) -> None:
    _hold("".join(scraps).encode("utf-8", "replace").decode())


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_any_mutant(seed: int) -> None:
    chance = random.Random(seed)
    _hold(mutant(chance.choice(TEXTS), chance))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_any_mutant_of_a_script(seed: int) -> None:
    with contextlib.suppress(UserError):  # nothing starts jax any more
        _hold(mutant(SCRIPT, random.Random(seed)), "train.py")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_any_mutant_can_be_fixed_or_left(seed: int) -> None:
    chance = random.Random(seed)
    text = mutant(chance.choice(TEXTS), chance)
    before = lint(text, "t.toml")
    after = fix_text(text, lambda changed: lint(changed, "t.toml"))
    assert len([f for f in after.verdict.findings if str(f.severity) == "error"]) <= len(
        [f for f in before.findings if str(f.severity) == "error"]
    )


@settings(max_examples=60, deadline=None)
@given(content=st.one_of(st.binary(max_size=200), st.integers(0, 2**32)))
def test_any_bytes_are_a_verdict_or_a_user_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes | int
) -> None:
    if isinstance(content, int):
        chance = random.Random(content)
        content = broken(chance.choice(TEXTS).encode(), chance)
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_bytes(content)
    with contextlib.suppress(UserError):
        check([str(file)])


@pytest.mark.parametrize("name", LARGE_TEXTS)
def test_large_texts(name: str, tmp_path: Path) -> None:
    text = LARGE_TEXTS[name](50_000)
    _show(tmp_path / "large.toml", text, _hold(text))


@pytest.mark.parametrize("name", LARGE_TEXTS)
def test_a_line_of_two_megabytes(name: str) -> None:
    """What takes the square of its length would need hours."""
    if "\n" not in LARGE_TEXTS[name](1000):
        _hold(LARGE_TEXTS[name](2_000_000))


@pytest.mark.parametrize("name", LARGE_SCRIPTS)
def test_large_scripts(name: str, tmp_path: Path) -> None:
    text = large_script(name, 190_000)
    _show(tmp_path / "train.py", text, _hold(text, "train.py"))


@pytest.mark.parametrize("front", ["", "[model]\n", "[orchestrator.train]\n"])
def test_keys_may_nest_deeper_than_python_calls(front: str) -> None:
    key = ".".join(["a"] * 990)
    verdict = lint(f'{front}{key} = "hf_abcdefghijklmnopqrstuvwx"\n', "t.toml")
    assert "SEC001" in {finding.code for finding in verdict.findings}
