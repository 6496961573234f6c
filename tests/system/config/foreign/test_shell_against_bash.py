"""Random scripts: what is told of a command's words is what bash gives to the command."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.config.foreign.nearby import NearbyScripts
from prime_train.config.foreign.shell.script import parse_script
from prime_train.config.foreign.shell.values import Word

_NAMES = st.sampled_from(["A", "B", "C", "ARR", "n"])
_NUMBER = st.integers(0, 20).map(str)
_TEXT = st.sampled_from(
    [
        "8",
        "1e-5",
        "a b",
        "  x  y ",
        "--flag",
        "k=v",
        "",
        "it's",
        "$",
        "a;b",
        "#no",
        "*",
        "a*",
        "{a,b}",
        "~",
        "x\\y",
        "!",
        "[a,b]",
        "k=[a,b]",
    ]
)


def _double(text: str) -> str:
    return '"' + "".join(f"\\{char}" if char in '$`"\\' else char for char in text) + '"'


def _single(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@st.composite
def _expansion(draw: st.DrawFn) -> str:
    name, text = draw(_NAMES), draw(st.sampled_from(["d", "p q", "", '"r s"', "'t'", "$B", "${C:-e}", "~/f"]))
    return draw(
        st.sampled_from(
            [
                f"${name}",
                f"${{{name}}}",
                f"${{{name}:-{text}}}",
                f"${{{name}-{text}}}",
                f"${{{name}:={text}}}",
                f"${{{name}:+{text}}}",
                f"${{{name}+{text}}}",
                f"${{{name}[@]}}",
                f"${{{name}[*]}}",
                f"${{{name}%x}}",
                f"${{#{name}}}",
                f"$(echo {name})",
                f"`echo {name}`",
                f"$(({draw(_NUMBER)} * {name} + 1))",
                f"$(( {draw(_NUMBER)} / {draw(_NUMBER)} - n ))",
                "$1",
                "${2:-two}",
                "$@",
                "$#",
            ]
        )
    )


@st.composite
def _word(draw: st.DrawFn) -> str:
    """A word as it is written; never empty."""
    parts = draw(
        st.lists(
            st.one_of(
                st.sampled_from(
                    ["a", "--x", "=", "1", "k=", "\\ ", "\\$A", "~", "a{1,2}", "*", "$'q\\n'", '$"t"', "a\\\nb"]
                ),
                _TEXT.map(_double),
                _TEXT.map(_single),
                _expansion(),
                _expansion().map(lambda inner: f'"{inner}"'),
                _expansion().map(lambda inner: f'"a {inner} b"'),
            ),
            min_size=1,
            max_size=3,
        )
    )
    return "".join(parts)


@st.composite
def _show(draw: st.DrawFn) -> str:
    words = draw(st.lists(_word(), max_size=4))
    gap = draw(st.sampled_from([" ", "  ", " \\\n  "]))
    prefix = draw(st.sampled_from(["", "", "A=zz ", "command "]))
    return f"{prefix}show id@{gap}" + gap.join(words)


@st.composite
def _assignment(draw: st.DrawFn) -> str:
    name, value = draw(_NAMES), draw(st.one_of(_word(), _NUMBER, _TEXT.map(_double)))
    items = " ".join(draw(st.lists(_word(), max_size=3)))
    return draw(
        st.sampled_from(
            [
                f"{name}={value}",
                f"{name}={value}",
                f"{name}+={value}",
                f"{name}=({items})",
                f"{name}+=({items})",
                f"{name}=(\n  {items}  # {value.splitlines()[0]}\n)",
                f"{name}[1]={value}",
                f"export {name}={value}",
                f"local {name}={value} 2> /dev/null",
                f"declare {name}={value}",
                f"readonly_{name}={value}",
                f"unset {name}",
                f"read {name} <<< {value}",
                f"read -r -d '' {name} <<EOF\n  {value} \\\n $A \nEOF",
                f"printf -v {name} %s {value}",
                f"set -- {items}",
                "shift 2> /dev/null",
                f": {value}",
                f"n={draw(_NUMBER)}",
                "(( n++ ))",
                "(( n = 3 ))",
                "let n=n+1",
                f"eval {name}={_single(value)}",
                f"eval {_single('show id@ ' + value)}",
                f"bash -c {_single('show id@ ' + value)} x y z",
                'bash -c "show id@ $A \\$B"' if not draw(st.booleans()) else f"export {name}",
                f"cat > file@ <<EOF\n{value} $A\nEOF",
                f"cat > file@ <<'EOF'\n{value} $A\nEOF",
            ]
        )
    )


def _blocks(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    block = st.lists(inner, min_size=1, max_size=4).map("\n".join)
    condition = st.sampled_from(["true", "false", '[ -z "$A" ]', "[[ $B == 8 ]]", "(( n > 2 ))"])
    return st.one_of(
        st.tuples(condition, block).map(lambda x: f"if {x[0]}; then\n{x[1]}\nfi"),
        st.tuples(condition, block, block).map(lambda x: f"if {x[0]}; then\n{x[1]}\nelse\n{x[2]}\nfi"),
        st.tuples(condition, block, condition, block).map(
            lambda x: f"if {x[0]}; then\n{x[1]}\nelif {x[2]}; then\n{x[3]}\nfi"
        ),
        st.tuples(_NAMES, _word(), block).map(lambda x: f"for {x[0]} in {x[1]} u v; do\n{x[2]}\ndone"),
        block.map(lambda x: f"for ((i=0; i<2; i++)); do\n{x}\ndone"),
        st.tuples(_word(), block, block).map(lambda x: f"case {x[0]} in\n a|8) {x[1]}\n;;\n (*) {x[2]} ;; esac"),
        block.map(lambda x: f"( {x}\n)"),
        block.map(lambda x: f"{{ {x}\n}}"),
        st.tuples(inner, inner).map(lambda x: f"{{ {x[0]}\n}} && {{ {x[1]}\n}}"),
        st.tuples(inner, inner).map(lambda x: f"{{ {x[0]}\n}} | {{ {x[1]}\n}}"),
        st.tuples(condition, inner).map(lambda x: f"{x[0]} || {{ {x[1]}\n}}"),
        st.tuples(st.sampled_from("fg"), block, st.lists(_word(), max_size=2)).map(
            lambda x: f"{x[0]}() {{\n{x[1]}\n}}\n{x[0]} {' '.join(x[2])}"
        ),
        block.map(lambda x: f"X=$({x}\n)"),
        st.tuples(condition, st.sampled_from(["exit 0", "return 0 2> /dev/null"])).map(
            lambda x: f"if {x[0]}; then {x[1]}; fi"
        ),
    )


_STATEMENT = st.recursive(st.one_of(_show(), _assignment(), _assignment()), _blocks, max_leaves=6)


def _number(script: str) -> str:
    """The script with a number for each `@` of a `show` or a file."""
    return re.sub(r"\b(id|file)@", lambda found: f"{found.group(1)}{found.start()}", script)


_SCRIPT = (
    st.lists(_STATEMENT, min_size=1, max_size=8)
    .map(lambda lines: "\n".join([*lines, 'show last $A "$B" ${ARR[@]}']))
    .map(_number)
)

_SHOW = """() {
  printf '%s\\0' "$#" "$@" >> "$SHOWN"
}"""


def _run(script: str, folder: Path) -> tuple[list[list[str]], dict[str, str]]:
    """The words of each `show` that bash runs, and the files that the script writes."""
    shown = folder / "shown"
    shown.write_bytes(b"")
    work = folder / "work"
    work.mkdir(exist_ok=True)
    for old in work.iterdir():
        old.unlink()
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/home/x", "SHOWN": str(shown), "BASH_FUNC_show%%": _SHOW}
    (folder / "script.sh").write_text(script)
    command = ["bash", "--norc", str(folder / "script.sh")]
    subprocess.run(
        command, cwd=work, env=environment, capture_output=True, timeout=20, check=False, stdin=subprocess.DEVNULL
    )
    texts = shown.read_text(errors="surrogateescape").split("\0")[:-1]
    calls = []
    while texts:
        count = int(texts.pop(0))
        calls.append(texts[:count])
        del texts[:count]
    return calls, {path.name: path.read_text() for path in work.iterdir()}


def _fits(words: Iterable[Word], given: list[str]) -> bool:
    """Whether words with open ones among them may have become these."""
    possible = {0}
    for word in words:
        if word.many:
            possible = {n for start in possible for n in range(start, len(given) + 1)}
        else:
            literal = word.literal
            possible = {n + 1 for n in possible if n < len(given) and literal in (None, given[n])}
    return len(given) in possible


def _mistakes(script: str, folder: Path) -> list[object]:
    """What is told of a script and is not so."""
    calls, files = _run(script, folder)
    read = parse_script(script, load=NearbyScripts(str(folder / "script.sh")).read)
    told: dict[str, list[tuple[Word, ...]]] = {}
    for command in read.commands:
        if command.name == "show":
            told.setdefault(command.words[1].text, []).append(command.words[1:])
    wrong: list[object] = [
        (words, told.get(words[0])) for words in calls if not any(_fits(each, words) for each in told.get(words[0], []))
    ]
    known = {name: body.literal for name, body in read.files.items() if body.literal is not None and name in files}
    return wrong + [(name, files[name], text) for name, text in known.items() if files[name] != text]


@settings(max_examples=100, deadline=None)
@given(_SCRIPT)
def test_known_words_are_those_that_bash_gives(tmp_path_factory: pytest.TempPathFactory, script: str) -> None:
    assert _mistakes(script, tmp_path_factory.getbasetemp()) == [], script


@settings(max_examples=60, deadline=None)
@given(_SCRIPT, _SCRIPT, _SCRIPT)
def test_a_sourced_script_is_followed_as_bash_follows_it(
    tmp_path_factory: pytest.TempPathFactory, before: str, sourced: str, behind: str
) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "env.sh").write_text(sourced)
    script = f'{before}\n. "$(dirname "$0")/env.sh"\n{behind}'
    assert _mistakes(script, folder) == [], (script, sourced)
