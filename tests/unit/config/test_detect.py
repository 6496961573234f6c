"""Files that are merged with + before a command reads them."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.cli.run.preflight import Command
from prime_train.config.detect import join_configs, read, read_config, split_config
from prime_train.config.prime_rl.read import merge
from prime_train.core.errors import UserError
from prime_train.rules.explain import BASE
from prime_train.rules.judge import lint_merged

_KEYS = st.sampled_from(["a", "b", "with space", "d"])
_VALUES = st.recursive(
    st.one_of(
        st.integers(-9, 9),
        st.text(max_size=3),
        st.booleans(),
        st.floats(-9, 9),
        st.dates(),
        st.times(),
        st.datetimes(timezones=st.sampled_from([None, UTC])),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(_KEYS, inner, max_size=3)),
    max_leaves=6,
)
_TABLES = st.dictionaries(_KEYS, _VALUES, max_size=4)


def _toml(values: object) -> str:
    from prime_train.toml.document import dotted, to_toml

    assert isinstance(values, dict)
    return "\n".join(f"{dotted((key,))} = {to_toml(value)}" for key, value in values.items())


def _merged(folder: Path, base: str, over: str) -> tuple[str, str]:
    (folder / "base.toml").write_text(base)
    (folder / "over.toml").write_text(over)
    return read_config(join_configs([str(folder / "base.toml"), "+", str(folder / "over.toml")]))


@settings(deadline=None, max_examples=40)
@given(_TABLES, _TABLES)
def test_the_merged_text_has_the_merged_values(tmp_path_factory: pytest.TempPathFactory, a: object, b: object) -> None:
    text, _ = _merged(tmp_path_factory.mktemp("merged"), _toml(a), _toml(b))
    assert isinstance(a, dict)
    assert isinstance(b, dict)
    assert tomli.loads(text) == merge([a, b])


def test_a_later_file_overrules_an_earlier_one(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(BASE)
    (tmp_path / "over.toml").write_text("[run]\nmax_steps = 7\n")
    config = join_configs([str(tmp_path / "base.toml"), "+", str(tmp_path / "over.toml")])
    run = read(*read_config(config)).run
    assert run is not None
    assert (run.run.max_steps, run.run.name) == (7, "example")
    assert Command(config, None, ()).text().split()[2:] == [
        str(tmp_path / "base.toml"),
        "+",
        str(tmp_path / "over.toml"),
    ]


def test_merged_files_of_a_run_toml_are_judged_as_one(tmp_path: Path) -> None:
    over = "[batch]\nmicro_batch = 3\n[schedule]\nwarmup_steps = 2000\n"
    verdict = lint_merged(((BASE, "base.toml"), (over, "over.toml")))
    assert verdict.dialect == "prime-train"
    assert [(each.code, each.path, each.span.line) for each in verdict.findings] == [("SCH001", "over.toml", 4)]
    assert verdict.run == read(*_merged(tmp_path, BASE, over)).run


def test_merged_recipes_are_judged_as_one() -> None:
    recipe = '[recipe]\nmodel_name = "Qwen/Qwen3-0.6B"\n'
    verdict = lint_merged(((recipe, "base.toml"), ("[recipe]\nctx_tokens = 0\n", "over.toml")))
    assert (verdict.dialect, [finding.path for finding in verdict.findings]) == ("recipe", ["over.toml"])


@pytest.mark.parametrize("words", [["a", "b"], ["+", "a"], ["a", "+"], ["a", "+", "b", "c"], ["a", "+", "+", "+", "b"]])
def test_other_words_are_refused(words: list[str]) -> None:
    with pytest.raises(UserError, match="several with a"):
        join_configs(words)


def test_a_file_whose_name_has_a_plus_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a + b").write_text(BASE)
    assert split_config("a + b") == ["a + b"]
    assert read_config("a + b") == (BASE, "a + b")


def test_a_file_with_faults_is_not_merged(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(BASE)
    (tmp_path / "b.toml").write_text("[run\n")
    with pytest.raises(UserError, match="cannot be merged"):
        read_config(f"{tmp_path / 'a.toml'} + {tmp_path / 'b.toml'}")
