from __future__ import annotations

from typing import Any

import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.toml.document import dotted, patched, to_toml
from prime_train.toml.edit import EditRefused, edited

TEXT = """\
# a run

[optim] # how it learns
lr = 1e-3  # tuned
# decays
weight_decay = 0.1

[orchestrator]
batch_size = 128
sampling = { max_tokens = 1_024, temperature = 1.0 }

# where it learns
[[orchestrator.env]]
id = "a"

[[orchestrator.env]]
id = "b"
args.depth = 2
"""


@pytest.mark.parametrize(
    ("patch", "before", "after"),
    [
        ({"optim.lr": 2e-4}, "lr = 1e-3  # tuned", "lr = 0.0002  # tuned"),
        ({"optim.betas": [0.9, 0.95]}, "weight_decay = 0.1\n", "weight_decay = 0.1\nbetas = [0.9, 0.95]\n"),
        ({"optim.weight_decay": None, "optim.wd": 0.1}, "weight_decay = 0.1", "wd = 0.1"),
        (
            {"orchestrator.sampling.max_tokens": None, "orchestrator.sampling.max_completion_tokens": 1024},
            "{ max_tokens = 1_024,",
            "{ max_completion_tokens = 1_024,",
        ),
        ({"orchestrator.sampling.temperature": None}, "1_024, temperature = 1.0 }", "1_024 }"),
        ({"orchestrator.sampling.top_p": 0.9}, "temperature = 1.0 }", "temperature = 1.0, top_p = 0.9 }"),
        ({"orchestrator.env.0.weight": 2}, 'id = "a"\n', 'id = "a"\nweight = 2\n'),
        ({"orchestrator.env.1.args.width": 3}, "args.depth = 2\n", "args.depth = 2\nargs.width = 3\n"),
        ({"orchestrator.batch_size": None}, "[orchestrator]\nbatch_size = 128\n", "[orchestrator]\n"),
        ({"run.name": "x"}, "args.depth = 2\n", 'args.depth = 2\n\n[run]\nname = "x"\n'),
        (
            {"ckpt": {"interval": 50, "weights": {"save_async": True}, "tags": ["a"]}},
            "args.depth = 2\n",
            'args.depth = 2\n\n[ckpt]\ninterval = 50\ntags = ["a"]\n\n[ckpt.weights]\nsave_async = true\n',
        ),
        (
            {"monitors.wandb": {"project": "mine"}},
            "args.depth = 2\n",
            'args.depth = 2\n\n[monitors.wandb]\nproject = "mine"\n',
        ),
        ({"ckpt": {}}, "# a run\n\n[optim]", "# a run\n\nckpt = {}\n\n[optim]"),
        ({"seed": 1}, "# a run\n\n[optim]", "# a run\n\nseed = 1\n\n[optim]"),
        ({"optim.lr": None}, "lr = 1e-3  # tuned\n", "# tuned\n"),
    ],
)
def test_one_change(patch: dict[str, Any], before: str, after: str) -> None:
    assert before in TEXT
    assert edited(TEXT, patch) == TEXT.replace(before, after)


def test_a_key_moves_to_another_table_with_its_comments() -> None:
    assert (
        edited(TEXT, {"optim.weight_decay": None, "orchestrator.decay.weight": 0.1})
        == TEXT.replace("# decays\nweight_decay = 0.1\n", "") + "\n[orchestrator.decay]\n# decays\nweight = 0.1\n"
    )
    assert edited(TEXT, {"optim.lr": None, "orchestrator.lr": 1e-3}) == TEXT.replace(
        "lr = 1e-3  # tuned\n", ""
    ).replace("temperature = 1.0 }\n", "temperature = 1.0 }\nlr = 1e-3  # tuned\n")


def test_a_key_moves_out_of_an_inline_table_and_into_one() -> None:
    out = edited(TEXT, {"orchestrator.sampling.max_tokens": None, "optim.max_tokens": 1024})
    assert "sampling = { temperature = 1.0 }" in out
    assert "weight_decay = 0.1\nmax_tokens = 1_024\n" in out
    into = edited(TEXT, {"optim.lr": None, "orchestrator.sampling.lr": 1e-3})
    assert "temperature = 1.0, lr = 1e-3 }" in into
    assert "# tuned" in into


def test_a_table_is_made_beside_its_sister() -> None:
    patch = {"a.model.x": None, "a.vllm.x": 1, "a.model.y": None, "a.vllm.y": 2}
    assert edited("[a.model]\nx = 1 # one\ny = 2\n\n[b]\n", patch) == (
        "[a.model]\n\n[a.vllm]\nx = 1  # one\ny = 2\n\n[b]\n"
    )


def test_an_array_of_tables_moves_by_its_headers() -> None:
    environments = tomli.loads(TEXT)["orchestrator"]["env"]
    assert edited(TEXT, {"orchestrator.env": None, "orchestrator.train.env": environments}) == TEXT.replace(
        "[[orchestrator.env]]", "[[orchestrator.train.env]]"
    )


def test_tables_and_array_elements_are_taken_away_whole() -> None:
    assert edited(TEXT, {"orchestrator.env.1": None}) == TEXT.replace(
        '\n[[orchestrator.env]]\nid = "b"\nargs.depth = 2\n', "\n"
    )
    assert "# how it learns" in edited(TEXT, {"optim": None})


def test_comments_within_a_value_that_goes_stay() -> None:
    text = "[a]\n  b = [ # one\n    1, # two\n  ]\n"
    assert edited(text, {"a.b": 2}) == "[a]\n  # one\n  # two\n  b = 2\n"
    assert edited(text, {"a.b": None}) == "[a]\n  # one\n  # two\n"


def test_line_ends_stay_as_they_are() -> None:
    assert edited("[a]\r\nb = 1\r\n", {"a.c": 2, "d.e": 3}) == "[a]\r\nb = 1\r\nc = 2\r\n\r\n[d]\r\ne = 3\r\n"
    assert edited("a = 1", {"b": 2}) == "a = 1\nb = 2\n"


def test_a_patch_without_a_way_is_refused() -> None:
    with pytest.raises(EditRefused, match="not TOML"):
        edited("a = ]", {"a": 1})
    with pytest.raises(EditRefused):
        edited("a = 1\n", {"a.b": 1})


# --- what must hold for every text and every patch ------------------------------------------------

_names = st.sampled_from(["a", "b", "c", "d e", "é"])
_scalars = st.one_of(st.integers(-9, 9), st.booleans(), st.sampled_from([0.5, "x", "é # no", [1, 2], []]))
_inline = st.dictionaries(_names, _scalars, max_size=3)
_comments = st.sampled_from(["", "  # why", "# é"])


@st.composite
def _bodies(draw: st.DrawFn) -> str:
    lines: list[str] = []
    for name, value in draw(st.dictionaries(_names, st.one_of(_scalars, _inline), max_size=4)).items():
        if draw(st.booleans()):
            lines.append(draw(st.sampled_from(["# above", "", "  # indented"])))
        key = dotted((name, "sub")) if draw(st.booleans()) else dotted((name,))
        lines.append(f"{key} = {to_toml(value)}{draw(_comments)}")
    return "".join(f"{line}\n" for line in lines)


@st.composite
def texts(draw: st.DrawFn) -> str:
    """A TOML text with comments, dotted keys, inline tables, tables and arrays of tables."""
    parts = [draw(st.sampled_from(["", "# top\n", "# top\n\n"])), draw(_bodies())]
    for names in draw(st.lists(st.lists(_names, min_size=1, max_size=3), max_size=4)):
        brackets = draw(st.sampled_from(["[{}]", "[[{}]]"]))
        header = brackets.format(dotted(tuple(names))) + draw(_comments) + "\n"
        text = "".join(parts) + draw(st.sampled_from(["", "\n", "\n# below\n"])) + header + draw(_bodies())
        try:
            tomli.loads(text)
        except tomli.TOMLDecodeError:
            continue
        parts = [text]
    return "".join(parts)


def _keys(values: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(values, dict):
        return [path for key, below in values.items() for path in [(*at, key), *_keys(below, (*at, key))]]
    if isinstance(values, list):
        return [path for n, below in enumerate(values) for path in [(*at, n), *_keys(below, (*at, n))]]
    return []


def _down(values: Any, path: tuple[str | int, ...]) -> Any:
    for part in path:
        values = values[part]
    return values


def _full(values: Any) -> Any:
    """Without empty tables: what a key taken away leaves behind."""
    if isinstance(values, dict):
        below = {key: _full(value) for key, value in values.items()}
        return {key: value for key, value in below.items() if value != {}}
    return [_full(value) for value in values] if isinstance(values, list) else values


def _comment_lines(text: str) -> list[str]:
    return sorted(line.strip() for line in text.splitlines() if line.strip().startswith("#"))


def _check(text: str, patch: dict[str, Any]) -> str | None:
    """The edited text, held to every promise; None where the edit is refused."""
    try:
        result = edited(text, patch)
    except EditRefused:
        return None
    assert _full(tomli.loads(result)) == _full(patched(tomli.loads(text), patch))
    for comment in set(_comment_lines(text)):
        assert _comment_lines(result).count(comment) >= _comment_lines(text).count(comment)
    return result


@settings(max_examples=100, deadline=None)
@given(texts(), st.data())
def test_every_value_can_be_set(text: str, data: st.DataObject) -> None:
    values = tomli.loads(text)
    leaves = [path for path in _keys(values) if not isinstance(_down(values, path), dict | list)]
    if leaves:
        path = data.draw(st.sampled_from(leaves))
        result = _check(text, {dotted(path): data.draw(_scalars)})
        assert result is not None
        unlike = [pair for pair in zip(text.splitlines(), result.splitlines(), strict=True) if pair[0] != pair[1]]
        assert len(unlike) <= 1


@settings(max_examples=100, deadline=None)
@given(texts(), st.data())
def test_every_key_can_be_taken_away(text: str, data: st.DataObject) -> None:
    paths = [path for path in _keys(tomli.loads(text)) if isinstance(path[-1], str)]
    if paths:
        result = _check(text, {dotted(data.draw(st.sampled_from(paths))): None})
        assert result is not None
        left = [line for line in result.splitlines() if line.strip() and not line.strip().startswith("#")]
        taken = iter(text.splitlines())
        if "{" not in text:
            assert all(line in taken for line in left)  # those left are as they were, in their order


@settings(max_examples=100, deadline=None)
@given(texts(), st.data())
def test_a_key_can_be_renamed(text: str, data: st.DataObject) -> None:
    values = tomli.loads(text)
    paths = [path for path in _keys(values) if isinstance(path[-1], str)]
    if paths:
        path = data.draw(st.sampled_from(paths))
        result = _check(text, {dotted(path): None, dotted((*path[:-1], "renamed")): _down(values, path)})
        assert result is not None


@settings(max_examples=100, deadline=None)
@given(texts(), st.lists(_names, min_size=1, max_size=2), st.data())
def test_a_value_can_be_moved_or_is_refused(text: str, tables: list[str], data: st.DataObject) -> None:
    values = tomli.loads(text)
    paths = [path for path in _keys(values) if isinstance(path[-1], str)]
    if paths:
        path = data.draw(st.sampled_from(paths))
        result = _check(text, {dotted(path): None, dotted(("moved", *tables, "here")): _down(values, path)})
        assert result is not None
        around = data.draw(
            st.sampled_from([key for key in _keys(values) if isinstance(_down(values, key), dict)] or [()])
        )
        if around[: len(path)] != path:
            beside = (*around, "beside", "here")
            assert _check(text, {dotted(path): None, dotted(beside): _down(values, path)}) is not None


@settings(max_examples=100, deadline=None)
@given(texts(), st.dictionaries(st.lists(_names, min_size=1, max_size=3).map(tuple), _scalars, max_size=3))
def test_any_patch_is_done_or_refused(text: str, patch: dict[tuple[str, ...], Any]) -> None:
    try:
        patched(tomli.loads(text), {dotted(path): value for path, value in patch.items()})
    except (AttributeError, TypeError):
        return  # a key below a value that is no table
    _check(text, {dotted(path): value for path, value in patch.items()})
