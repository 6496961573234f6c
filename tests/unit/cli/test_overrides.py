from datetime import date
from pathlib import Path
from typing import Any

import pytest
import tomli
import typer
from hypothesis import given
from hypothesis import strategies as st

from prime_train.cli.run.preflight import Command, apply_overrides, check_config, parse_overrides
from prime_train.core.errors import UserError
from prime_train.toml.document import patched

CONFIG = """\
# A comment that stays.
[run]
name = "small"          # and this one
max_steps = 100
[data]
ctx_tokens = 64
[[data.sources]]
kind = "files"
path = "ä.txt"
[eval]
prompts = [
  "one",
  "two",
]
"""


@pytest.mark.parametrize(
    ("assignment", "value"),
    [
        ("run.max_steps=500", 500),
        ("optim.lr=3e-4", 3e-4),
        ("checkpoint.async=false", False),
        ("run.name=second-try", "second-try"),
        ('run.name="two words"', "two words"),
        ('eval.prompts=["a", "b"]', ["a", "b"]),
        ("tokenizer.path=/models/a_b", "/models/a_b"),
        (" run.seed = 7 ", 7),
    ],
)
def test_a_value_is_toml_or_one_plain_word(assignment: str, value: Any) -> None:
    assert list(parse_overrides([assignment]).values()) == [value]


@pytest.mark.parametrize("assignment", ["run.max_steps", "=5", "steps=5", "run..seed=1", "run.name=two words", "a.b="])
def test_what_is_no_assignment_names_the_option(assignment: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_overrides([assignment])
    assert caught.value.where == f"--set {assignment}"
    with pytest.raises(UserError) as caught:  # `prime-train set` has no such option
        parse_overrides([assignment], option="")
    assert "--set" not in f"{caught.value.where} {caught.value.fix}"


def test_a_key_without_its_table_gets_the_tables_that_have_it() -> None:
    with pytest.raises(UserError) as caught:
        parse_overrides(["max_steps=4"])
    assert caught.value.fix == "--set run.max_steps=4"
    with pytest.raises(UserError) as caught:
        parse_overrides(["path=a"])
    assert caught.value.fix == "--set model.path=a or --set tokenizer.path=a"


def test_a_date_is_written_as_toml_has_it() -> None:
    values = parse_overrides(["run.name=2026-01-31", "run.at=07:30:00"])
    assert tomli.loads(apply_overrides(CONFIG, "run.toml", values))["run"]["name"] == date(2026, 1, 31)


def test_a_written_value_is_replaced_where_it_stands() -> None:
    text = apply_overrides(
        CONFIG, "run.toml", {"run.max_steps": 500, "data.sources.0.path": "b.txt", "eval.prompts": []}
    )
    assert text == (
        CONFIG.replace("= 100", "= 500").replace('"ä.txt"', '"b.txt"').replace('[\n  "one",\n  "two",\n]', "[]")
    )


def test_a_key_that_is_not_written_goes_into_its_table_or_a_table_of_its_own() -> None:
    text = apply_overrides(CONFIG, "run.toml", {"run.seed": 7, "prime_train.restart.backoff_s": 0.5, "optim.lr": 0.25})
    assert tomli.loads(text) == patched(
        tomli.loads(CONFIG), {"run.seed": 7, "prime_train.restart.backoff_s": 0.5, "optim.lr": 0.25}
    )
    assert "max_steps = 100\nseed = 7\n[data]\n" in text


@pytest.mark.parametrize(("key", "value"), [("name", "b"), ("seed", 7)])
def test_a_table_written_in_one_line_takes_a_value(key: str, value: str | int) -> None:
    text = apply_overrides("run = {name = 'a'}\n", "run.toml", {f"run.{key}": value})
    assert tomli.loads(text)["run"] == {"name": "a"} | {key: value}


def test_what_cannot_be_edited_is_refused_and_named() -> None:
    with pytest.raises(UserError) as caught:
        apply_overrides("run = {name = 'a'}\n", "run.toml", {"run.name.deeper": 1})
    assert caught.value.where == "--set run.name.deeper"


def test_a_source_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError):
        apply_overrides(CONFIG, "run.toml", {"data.sources.3.path": "x"})


def test_a_text_that_is_not_toml_is_left_to_lint() -> None:
    assert apply_overrides("[run\n", "run.toml", {"run.seed": 7}) == "[run\n"


_NAMES = st.sampled_from(["run.name", "run.seed", "optim.lr", "data.ctx_tokens", "data.sources.0.kind", "a.b.c"])
_VALUES = st.one_of(
    st.integers(-(2**40), 2**40), st.booleans(), st.text(max_size=20), st.floats(allow_nan=False), st.lists(st.text())
)


@given(st.dictionaries(_NAMES, _VALUES, max_size=4))
def test_the_text_states_what_was_asked_and_nothing_else_changes(values: dict[str, Any]) -> None:
    text = apply_overrides(CONFIG, "run.toml", values)
    assert tomli.loads(text) == patched(tomli.loads(CONFIG), values)
    assert "# A comment that stays." in text


@pytest.mark.parametrize("assignment", ["run.seed=7", "run.max_steps=50", "schedule.warmup_steps=3"])
def test_findings_have_the_lines_of_the_file(
    assignment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(f'{CONFIG}[optim]\nlr = "fast"\n', encoding="utf-8")
    with pytest.raises(typer.Exit):
        check_config(Command(str(config), None, (assignment,)), validate=False)
    assert f'{config}:16:1  optim.lr = "fast"' in capsys.readouterr().err


def test_a_finding_on_an_added_line_is_at_the_end_of_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.toml"
    config.write_text(CONFIG, encoding="utf-8")
    with pytest.raises(typer.Exit):
        check_config(Command(str(config), None, ("run.sed=7",)), validate=False)
    assert f"{config}:4:1  run.sed = 7" in capsys.readouterr().err
