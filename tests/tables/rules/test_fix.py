from __future__ import annotations

from collections.abc import Callable

import pytest
import tomli
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.findings import Finding, Severity, TextSpan
from prime_train.rules.explain import BASE
from prime_train.rules.fix import fix_text
from prime_train.rules.judge import Verdict, lint
from tests.unit.config.prime_rl.files import RL_2026_05, RL_2026_08, SFT_2026_08


def judge(text: str) -> Verdict:
    return lint(text, "run.toml")


def test_faults_are_fixed_and_comments_stay() -> None:
    text = BASE.replace("micro_batch = 8", "micro_bacth = 8  # as much as fits\n[optim]\nlr = '1e-3'\n# how fast\n")
    result = fix_text(text, judge)
    assert result.verdict.findings == ()
    assert "micro_batch = 8  # as much as fits\n" in result.text
    assert "lr = 0.001\n# how fast\n" in result.text
    assert [finding.code for finding in result.applied] == ["CFG002", "CFG003"]
    assert result.refused == ()


def test_a_clean_text_and_a_broken_one_stay() -> None:
    assert fix_text(BASE, judge).text == BASE
    broken = BASE + "[optim]\nlr = ]\n"
    assert fix_text(broken, judge).text == broken


def test_only_selected_findings_are_fixed() -> None:
    text = BASE.replace("micro_batch = 8", "micro_bacth = 8\n[optim]\nlr = '1e-3'")
    result = fix_text(text, judge, lambda verdict: verdict.only(("CFG003",), ()))
    assert "micro_bacth" in result.text
    assert "lr = 0.001" in result.text


def _finding(patch: dict[str, object], code: str = "XXX001") -> Finding:
    return Finding(code, Severity.ERROR, "t", TextSpan(1, 1, 1, 1), next(iter(patch)), "", "w", "y", "f", patch)


def _verdict(*findings: Finding) -> Verdict:
    return judge(BASE)._replace(findings=findings)


@pytest.mark.parametrize(
    ("findings_of", "after", "applied"),
    [
        # a patch that makes things worse is taken back, and the one beside it kept
        (
            lambda v: (
                [_finding({"a": 2}), _finding({"b": 2}, "YYY001")]
                if v == {"a": 1, "b": 1}
                else [_finding({"c": 1})] * 9
                if v["a"] == 2
                else []
            ),
            "a = 1\nb = 2\n",
            ["YYY001"],
        ),
        # a patch that cannot be written is refused
        (lambda v: [_finding({"a.b": 2})] if v["a"] == 1 else [], "a = 1\nb = 1\n", []),
        # patches of the same key: the first one
        (
            lambda v: [_finding({"a": 2}), _finding({"a": 3}, "YYY001")] if v["a"] == 1 else [],
            "a = 2\nb = 1\n",
            ["XXX001"],
        ),
        # one that never ends comes to an end
        (lambda v: [_finding({"a": v["a"] + 1})], "a = 13\nb = 1\n", ["XXX001"] * 12),
    ],
    ids=["worse", "impossible", "overlapping", "endless"],
)
def test_patches_that_do_not_help(
    findings_of: Callable[[dict[str, int]], list[Finding]], after: str, applied: list[str]
) -> None:
    result = fix_text("a = 1\nb = 1\n", lambda text: _verdict(*findings_of(tomli.loads(text))))
    assert result.text == after
    assert [finding.code for finding in result.applied] == applied


# --- a safe fix keeps every value -----------------------------------------------------------------

_FORBIDDEN = {  # a key that stands in the wrong table -> the values that its fix must not write elsewhere
    "[orchestrator.train.sampling]\n": "top_p = 0.9",
    "[trainer.model]\n": 'dtype = "bfloat16"',
    "[orchestrator]\n": "lr = 1e-7",
    "[inference.vllm]\n": "gpu_memory_utilization = 1.5",
}


def _leaves(value: object) -> list[object]:
    if isinstance(value, dict):
        return [leaf for below in value.values() for leaf in _leaves(below)]
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return [leaf for below in value for leaf in _leaves(below)]
    return [value]


def _is_kept(value: object, after: list[object]) -> bool:
    """Whether a value is still there, perhaps as another type, or as the one entry of an array."""
    forms = {repr(value), repr([value]), repr(str(value)), repr(str(value).lower() in ("true", "1"))}
    if isinstance(value, str):
        forms |= {repr(number) for kind in (int, float) if (number := _number(kind, value)) is not None}
    if isinstance(value, float) and value.is_integer():
        forms.add(repr(int(value)))
    if isinstance(value, list) and len(value) == 1:
        forms.add(repr(value[0]))
    return any(repr(one) in forms for one in after)


def _number(kind: type, text: str) -> object:
    try:
        return kind(text)
    except ValueError:
        return None


def _fixed_safely(text: str, generation: str | None) -> str:
    def safe(verdict: Verdict) -> Verdict:
        return verdict._replace(findings=tuple(finding for finding in verdict.findings if finding.safe))

    return fix_text(text, lambda each: lint(each, "rl.toml", generation), safe).text


@settings(deadline=None, max_examples=12)
@given(st.data())
def test_a_safe_fix_keeps_every_value_that_the_user_set(data: st.DataObject) -> None:
    base = data.draw(st.sampled_from([RL_2026_05, RL_2026_08, SFT_2026_08]))
    lines = base.splitlines()
    numbers = [number for number, line in enumerate(lines) if " = " in line]
    for number in data.draw(st.lists(st.sampled_from(numbers), min_size=1, max_size=3, unique=True)):
        key, _, value = lines[number].partition(" = ")
        match data.draw(st.sampled_from(["letter", "table", "string", "other", "swap"])):
            case "letter":
                at = data.draw(st.integers(0, len(key) - 1))
                lines[number] = f"{key[:at]}{key[at + 1 :]} = {value}"
            case "table":  # under another header
                headers = [at for at, line in enumerate(lines) if line.startswith("[")]
                at = data.draw(st.sampled_from(headers))
                lines[at] += f"\n{key}x{number} = {value}" if data.draw(st.booleans()) else f"\n{key} = {value}"
                lines[number] = ""
            case "string":
                lines[number] = f"{key} = " + (value if value[0] in '"[{' else f'"{value}"')
            case "other":
                lines[number] += f"\n{data.draw(st.sampled_from(['bench', 'dtype', 'top_p', 'seed', 'typ']))} = 1"
            case "swap":
                lines[number] = f"{key[1:2]}{key[:1]}{key[2:]} = {value}"
    text = "\n".join(lines)
    try:
        before = tomli.loads(text)
    except tomli.TOMLDecodeError:
        return
    generation = data.draw(st.sampled_from([None, "2026-05", "2026-08"]))
    after = _leaves(tomli.loads(_fixed_safely(text, generation)))
    for leaf in _leaves(before):
        # ckpt.resume_step = -1, the latest, is an empty [resume]
        assert _is_kept(leaf, after) or leaf == -1, leaf


@pytest.mark.parametrize(("table", "line"), _FORBIDDEN.items())
def test_a_safe_fix_leaves_what_may_mean_something_else(table: str, line: str) -> None:
    head = table.strip()
    whole = RL_2026_08 if head + "\n" in RL_2026_08 else f"{RL_2026_08}\n{head}\n"
    text = whole.replace(table, f"{table}{line}\n", 1)
    assert lint(text, "rl.toml", "2026-08").findings
    assert _fixed_safely(text, "2026-08") == text


def test_a_sampling_key_that_training_has_not_is_not_moved_to_the_evaluation() -> None:
    text = RL_2026_08.replace("[orchestrator.train.sampling]\n", "[orchestrator.train.sampling]\ntop_p = 0.9\n")
    (finding,) = [item for item in lint(text, "rl.toml", "2026-08").findings if item.key.endswith("top_p")]
    assert finding.patch == {"orchestrator.train.sampling.top_p": None}


def test_an_impossible_memory_fraction_is_not_read_as_a_percentage() -> None:
    text = RL_2026_08.replace("[inference.vllm]\n", "[inference.vllm]\ngpu_memory_utilization = 1.5\n")
    (finding,) = [item for item in lint(text, "rl.toml", "2026-08").findings if item.code == "MEM001"]
    assert finding.patch == {"inference.vllm.gpu_memory_utilization": 0.9}
