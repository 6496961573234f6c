"""prime-rl's own example configs: nothing at error level but the defects that they have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prime_train.cli.lint.files import check
from prime_train.core.findings import Severity
from prime_train.rules.fix import fix_text
from prime_train.rules.judge import Verdict, lint

# Beside the checkout, or where the variable says; a public clone has none.
CORPUS = Path(os.environ.get("PRIME_RL_EXAMPLES", Path(__file__).parents[3] / "shared" / "corpus" / "prime-rl"))
FILES = sorted(CORPUS.rglob("*.toml")) if CORPUS.is_dir() else []

# What is wrong with the examples themselves: the line, and the key.
DEFECTS = {
    "2026-01/configs/intellect_3/evals/api/openrouter/deepseek.toml": (7, "client.extra_body"),
    "2026-01/configs/intellect_3/evals/api/openrouter/zai.toml": (7, "client.extra_body"),
    "2026-01/examples/wordle/sft.toml": (12, "data.micro-batch-size"),
}

pytestmark = pytest.mark.skipif(not FILES, reason="the corpus of prime-rl's example configs is not here")


def _name(file: Path) -> str:
    return str(file.relative_to(CORPUS))


def _lint(file: Path, generation: str | None) -> Verdict:
    return lint(file.read_text(encoding="utf-8"), _name(file), generation)


def _errors(verdict: Verdict) -> list[tuple[int, str]]:
    return [(item.span.line, item.key) for item in verdict.findings if item.severity is Severity.ERROR]


@pytest.mark.parametrize("file", FILES, ids=_name)
def test_no_error_but_the_known_defects(file: Path) -> None:
    generation = _name(file).partition("/")[0]
    verdict = _lint(file, generation)
    assert verdict.generation == generation
    assert verdict.run is not None
    known = DEFECTS.get(_name(file))
    assert _errors(verdict) == ([known] if known else [])


@pytest.mark.parametrize("file", FILES, ids=_name)
def test_the_keys_report_the_generation_or_fit_several(file: Path) -> None:
    generation = _name(file).partition("/")[0]
    verdict = _lint(file, None)
    assert verdict.dialect == "prime-rl"
    known = DEFECTS.get(_name(file))
    assert _errors(verdict) == ([known] if known else [])
    if verdict.generation != generation:
        assert generation in verdict.because


@pytest.mark.parametrize("file", [file for file in FILES if "2026-01/" in str(file)], ids=_name)
def test_a_january_file_is_taken_to_august_or_names_what_needs_a_person(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    result = fix_text(text, lambda text: lint(text, _name(file), "2026-08"))
    for finding in result.verdict.findings:
        if finding.severity is Severity.ERROR:
            assert finding.key
            assert finding.fix
            assert finding.code.startswith("CFG")


def test_a_folder_of_them_is_linted_at_once() -> None:
    output, ok = check([str(CORPUS / "2026-05" / "examples")], output_format="concise")
    assert ok
    assert "error[" not in output
