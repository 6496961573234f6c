"""Nothing that is named secret is shown, in any format."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.cli.terminal.render import json_text, table
from prime_train.config import detect
from prime_train.config.compare import ConfigComparison
from prime_train.config.differences import diff, plain
from prime_train.config.resolved import resolve
from prime_train.core.redaction import MASK
from prime_train.toml.document import Document, to_toml
from prime_train.views.config.differences import ConfigNotes, as_document, remarks, side_by_side, unified
from prime_train.views.config.masked import mask, mask_text

_SECRET_NAMES = st.sampled_from(["WANDB_API_KEY", "hf_token", "password", "client_secret", "Authorization", "TOKEN_2"])
_PLAIN_NAMES = st.sampled_from(["a", "env_vars", "headers", "lr"])
_SECRETS = st.from_regex(r"zz[a-z]{5}[0-9é]{0,3}qq", fullmatch=True)  # no other value looks like it


@st.composite
def _values(draw: st.DrawFn, depth: int = 2) -> dict[str, Any]:
    """A table with secrets under their names, at any depth, alone and in lists."""
    values: dict[str, Any] = dict(draw(st.dictionaries(_PLAIN_NAMES, st.integers() | st.booleans(), max_size=2)))
    held = _SECRETS | st.lists(_SECRETS, min_size=1, max_size=2) | st.dictionaries(_PLAIN_NAMES, _SECRETS, min_size=1)
    values |= draw(st.dictionaries(_SECRET_NAMES, held, max_size=2))
    if depth:
        values |= draw(st.dictionaries(_PLAIN_NAMES, _values(depth - 1), max_size=2))
        values |= {"list": draw(st.lists(_values(depth - 1), max_size=2))}
    return values


def _paint(text: str, _style: str) -> str:
    return text


@settings(max_examples=40, deadline=None)
@given(_values(), _values())
def test_no_format_of_a_comparison_shows_a_secret(before: dict[str, Any], after: dict[str, Any]) -> None:
    found = ConfigComparison(diff(plain(before), plain(after)))
    document = as_document(("a", "b"), found, ConfigNotes(), ())
    rows = [*side_by_side(document, _paint), ("",) * 5]
    shown = (unified(document, _paint), json_text(document), table(rows, ("",) * 5), str(remarks(document)))
    assert not [text for text in shown if "zz" in text]


@settings(max_examples=40, deadline=None)
@given(_values())
def test_no_secret_is_in_the_text_or_in_a_value(values: dict[str, Any]) -> None:
    text = "\n".join(f"{name} = {to_toml(value)}" for name, value in values.items())
    document = Document.parse(text, "a.toml")
    assert document.values == values
    assert "zz" not in mask_text(document, ())
    assert "zz" not in json.dumps(mask("x", plain(values), ()), ensure_ascii=False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.yaml",
            "base_model: a/b\nadapter: lora\nmicro_batch_size: 2\ndatasets:\n  - path: x\nhf_token: zzabcdeqq\n",
        ),
        ("a.sh", "export WANDB_API_KEY=zzabcdeqq\naccelerate launch -m axolotl.cli.train a.yaml\n"),
    ],
)
def test_files_of_other_programs_are_masked(name: str, text: str) -> None:
    reading = detect.read(text, name)
    assert "zz" not in mask_text(reading.document, ())
    assert "zz" not in str([mask(one.key, one.value, ()) for one in resolve(reading)])


def test_a_count_is_no_secret_and_a_variable_in_place_of_a_value_is_shown() -> None:
    assert mask("model.experts_per_token", 8, ()) == 8
    assert mask("password", 8, ()) != 8
    text = "export HF_TOKEN=$TOKEN\n"
    assert mask_text(Document(text, "a.sh", {}), ()) == text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.input_key", "question"),
        ("actor.reward_fn_key", "data_source"),
        ("tokenizer.pad_token", "<|endoftext|>"),
        ("special_tokens.eos_token", "<|im_end|>"),
        ("data.text_field", "content"),
        ("hub.token", "true"),
        ("hub.token", "null"),
    ],
)
def test_a_token_of_a_tokenizer_a_column_and_a_switch_are_shown(key: str, value: str) -> None:
    assert mask(key, value, ()) == value
    table, _, name = key.partition(".")
    text = f'[{table}]\n{name} = "{value}"\n'
    assert mask_text(Document.parse(text, "a.toml"), ()) == text
    shell = f"trainer \\\n  {key}={value}\n"
    assert mask_text(Document(shell, "a.sh", {}), ()) == shell


def test_a_secret_under_a_plain_name_is_masked_by_its_form() -> None:
    token = "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH"
    assert token not in mask("tokenizer.pad_token", token, ())
    assert token not in mask_text(Document.parse(f'pad_token = "{token}"\n', "a.toml"), ())
    for name in ("encryption_key", "PAD_TOKEN", "pad_token.password", "auth_token"):
        assert mask(name, "zzabcdeqq", ()) == MASK


def test_a_secret_that_differs_is_marked() -> None:
    found = ConfigComparison(diff({"env_vars": {"HF_TOKEN": "one"}}, {"env_vars": {"HF_TOKEN": "two"}}))
    ((_, key, before, after, _),) = side_by_side(as_document(("a", "b"), found, ConfigNotes(), ()), _paint)
    assert key == "env_vars.HF_TOKEN"
    assert after == f"{before} (differs)"
