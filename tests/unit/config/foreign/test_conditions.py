"""Conditions are true, false or unknown; what only the run knows never makes one true."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.config.foreign.conditions import evaluate, holds, parse
from prime_train.config.foreign.scope import UNKNOWN, Scope
from prime_train.config.foreign.values import Open

VALUES: dict[str, Any] = {
    "adapter": "qlora",
    "load_in_4bit": True,
    "micro_batch_size": 4,
    "learning_rate": "1e-5",
    "quoted": "8",
    "said": "no",
    "fsdp": ["full_shard", "auto_wrap"],
    "deepspeed": None,
    "precision": Open("auto"),
    "variable": Open("$N"),
    "table": {"inner": {"stage": 3}, "open": Open("${x}")},
}
SCOPE = Scope(
    VALUES, {"sequence_len": 512}, {"DEEPSPEED": {"zero_optimization": {"stage": 2}}}, lambda name: name == "there"
)


@pytest.mark.parametrize(
    "condition",
    [
        "adapter == 'qlora' and load_in_4bit",
        "not deepspeed",
        "micro_batch_size * 2 == 8 and 2 <= micro_batch_size < 5",
        "micro_batch_size % 3 != 0",
        "quoted == 8 and quoted > 7",
        "learning_rate < 1 and not number(learning_rate)",
        "number(micro_batch_size) and table(table) and text(adapter) and list(fsdp)",
        "'full_shard' in fsdp and 'lora' in adapter",
        "adapter in ['lora', 'qlora'] and adapter not in ['dora']",
        "table.inner.stage == 3",
        "sequence_len == 512",
        "absent == None and not given(absent)",
        "written(deepspeed) and not given(deepspeed)",
        "count(adapter, deepspeed, fsdp) == 2 and keys(adapter, deepspeed, absent) == 2",
        "matches(adapter, 'Q?LORA')",
        "length(fsdp) == 2",
        "present(DEEPSPEED) and not present(LAUNCH)",
        "DEEPSPEED.zero_optimization.stage == 2",
        "precision == 'auto' and given(precision)",
        "variable > 3 or load_in_4bit",
    ],
)
def test_it_is_true(condition: str) -> None:
    assert holds(condition, SCOPE)


@pytest.mark.parametrize(
    "condition",
    [
        "variable",
        "variable == 3",
        "variable != 3",
        "not variable",
        "given(variable)",
        "precision != 'full'",
        "precision == 'full'",
        "said",
        "said == False",
        "LAUNCH.world > 1",
        "not LAUNCH.world",
        "not given(LAUNCH.world)",
        "absent > 3",
        "adapter > 3",
        "micro_batch_size / 0 > 1",
        "table.open == 1",
        "table.open.deeper == 1",
        "count(variable, adapter) == 1",
        "variable in ['a']",
        "variable not in ['a']",
    ],
)
def test_it_is_not_known_and_so_not_true(condition: str) -> None:
    assert not holds(condition, SCOPE)
    assert not holds(f"not ({condition})", SCOPE)


@pytest.mark.parametrize(
    "condition",
    ["__import__('os')", "a.b()", "(lambda: 1)()", "[x for x in y]", "f'{a}'", "a if b else c", "unknown(a)", "given()",
     "given(1)", "matches(a)", "a = 1", "a ** b", "given(a, b=1)", "matches(a, '(')"],
)  # fmt: skip
def test_what_is_outside_the_grammar_is_refused(condition: str) -> None:
    with pytest.raises((ValueError, __import__("re").error)):
        parse(condition)


_TERMS = st.sampled_from([*(f"{name}" for name in VALUES), "absent", "3", "'lora'", "LAUNCH.world"])
_EXPRESSIONS = st.recursive(
    _TERMS | st.builds("given({})".format, st.sampled_from(list(VALUES))),
    lambda below: (
        st.builds("({} {} {})".format, below, st.sampled_from(["and", "or", "==", "!=", "<", "+", "%"]), below)
        | st.builds("(not {})".format, below)
    ),
    max_leaves=8,
)


@given(_EXPRESSIONS)
def test_a_condition_and_its_contrary_are_never_both_true(condition: str) -> None:
    assert not (holds(condition, SCOPE) and holds(f"not {condition}", SCOPE))


@given(_EXPRESSIONS)
def test_a_value_that_becomes_known_changes_no_certain_truth(condition: str) -> None:
    """What is true with an open value is true with each value that the run could have."""
    if evaluate(condition, SCOPE) is UNKNOWN or not holds(condition, SCOPE):
        return
    for value in (None, 0, 3, True, "lora"):
        assert holds(condition, SCOPE._replace(values={**VALUES, "variable": value})), value
