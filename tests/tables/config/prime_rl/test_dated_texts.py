"""Configs between the generations get no error that their own generation does not give."""

from __future__ import annotations

import pytest

from prime_train.core.findings import Severity
from prime_train.rules.judge import lint
from tests.tables.config.prime_rl.dated_texts import DATED_TEXTS, DatedText

GENERATIONS = ("2026-01", "2026-05", "2026-08")
IDS = [f"{dated.date}-{number}" for number, dated in enumerate(DATED_TEXTS)]


def _errors(dated: DatedText, generation: str | None = None) -> list[str]:
    """The keys with an error, by a generation that is named or found."""
    findings = lint(dated.text, dated.name, generation).findings
    return [finding.key for finding in findings if finding.severity is Severity.ERROR]


@pytest.mark.usefixtures("three_generations")
@pytest.mark.parametrize("dated", DATED_TEXTS, ids=IDS)
def test_no_generation_has_fewer_errors_than_the_one_that_is_found(dated: DatedText) -> None:
    by_generation = {name: _errors(dated, name) for name in GENERATIONS}
    assert tuple(name for name in GENERATIONS if not by_generation[name]) == dated.accepts
    assert len(_errors(dated)) == min(map(len, by_generation.values()))


@pytest.mark.usefixtures("three_generations")
@pytest.mark.parametrize("dated", [dated for dated in DATED_TEXTS if dated.accepts])
def test_the_newest_generation_that_accepts_it_is_found(dated: DatedText) -> None:
    verdict = lint(dated.text, dated.name)
    assert (verdict.generation, _errors(dated)) == (dated.accepts[-1], [])


def test_there_are_sixty_texts_and_most_are_accepted() -> None:
    assert len({dated.text for dated in DATED_TEXTS}) >= 60
    assert sum(bool(dated.accepts) for dated in DATED_TEXTS) >= 40
