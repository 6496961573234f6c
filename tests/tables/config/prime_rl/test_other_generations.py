"""A prime-rl config that is rewritten for another generation has no difference from itself."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from prime_train.config import detect
from prime_train.config.compare import compare
from prime_train.config.parsed_config import OTHER_GENERATION
from prime_train.config.prime_rl.schema import load
from prime_train.config.prime_rl.translate import root_in
from prime_train.rules.fix import fix_text
from prime_train.rules.judge import Verdict, lint
from tests.tables.config.prime_rl.dated_texts import DATED_TEXTS
from tests.unit.config.prime_rl.files import FILES

pytestmark = pytest.mark.usefixtures("three_generations")
CORPUS = Path(os.environ.get("PRIME_RL_EXAMPLES", Path(__file__).parents[5] / "shared" / "corpus" / "prime-rl"))
NEWEST = "2026-08"
OWN = [
    (dated.accepts[0], dated.name, dated.text) for dated in DATED_TEXTS if dated.accepts and dated.accepts[0] < NEWEST
]
OWN += [(generation, f"{root}.toml", text) for (generation, root), text in FILES.items() if generation < NEWEST]


def _moves(verdict: Verdict) -> Verdict:
    """Only the findings that give a key of another generation its present name."""
    moved = (finding for finding in verdict.findings if finding.code == OTHER_GENERATION)
    return verdict._replace(findings=tuple(one for one in moved if any(v is not None for v in one.patch.values())))


@cache
def _rewritten(name: str, text: str) -> str:
    return fix_text(text, lambda text: lint(text, name, NEWEST), _moves).text


def _differs(generation: str, name: str, text: str) -> bool:
    """Whether the text differs from itself in the newest generation."""
    before, after = detect.read(text, name, generation), detect.read(_rewritten(name, text), name, NEWEST)
    return bool(compare(before, after).differences)


@pytest.mark.parametrize(("generation", "name", "text"), OWN, ids=[f"{one[0]}-{n}" for n, one in enumerate(OWN)])
def test_a_rewritten_config_does_not_differ(generation: str, name: str, text: str) -> None:
    assert not _differs(generation, name, text)


def test_most_of_these_texts_are_rewritten() -> None:
    assert sum(_rewritten(name, text) != text for _, name, text in OWN) >= 25


def test_configs_of_prime_rl_do_not_differ_from_themselves_in_another_generation() -> None:
    if not CORPUS.is_dir():
        pytest.skip("the example configs of prime-rl are not here")
    files = [path for name in ("2026-01", "2026-05") for path in sorted((CORPUS / name).rglob("*.toml"))]
    named = [
        (path.relative_to(CORPUS).parts[0], str(path.relative_to(CORPUS)), path.read_text("utf-8")) for path in files
    ]
    # A root that the newest generation does not have, or finds another one for, is no config of the same kind there.
    same_root = [one for one in named if _keeps_root(*one)]
    assert len(same_root) >= 60
    assert [name for generation, name, text in same_root if _differs(generation, name, text)] == []


def _keeps_root(generation: str, name: str, text: str) -> bool:
    root = root_in(load(NEWEST), detect.read(text, name, generation).root)
    return root is not None and detect.read(_rewritten(name, text), name, NEWEST).root == root


def test_one_more_change_is_the_one_difference() -> None:
    for generation, name, text in OWN:
        if "max_steps = 40\n" in text:
            changed = _rewritten(name, text).replace("max_steps = 40\n", "max_steps = 41\n")
            found = compare(detect.read(text, name, generation), detect.read(changed, name, NEWEST))
            assert [(one.key, one.before, one.after) for one in found.differences] == [("max_steps", 40, 41)]
