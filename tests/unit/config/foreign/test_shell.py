"""Bash scripts: what is known of a word, where it stands, and how much a hostile script may cost."""

from __future__ import annotations

import pytest

from prime_train.config.foreign.shell.script import parse_script


def _words(script: str, name: str = "run") -> list[list[str | None]]:
    """The words behind each command `run`; None for one that is not known."""
    return [
        [word.literal for word in command.words[1:]]
        for command in parse_script(script).commands
        if command.name == name
    ]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("A=8\nrun $A", ["8"]),
        ('A="x y"\nrun $A "$A"', ["x", "y", "x y"]),
        ("run ${A:-8}", ["8"]),
        ("run $A", [None]),
        ("A=$1\nrun --x=$A", [None]),
        ("A=$(nproc)\nrun $A", [None]),
        ("if x; then A=1; fi\nrun $A", [None]),
        ("if x; then A=1; else A=1; fi\nrun $A", ["1"]),
        ("if x; then exit 1; fi\nA=1\nrun $A", ["1"]),
        ("A=1\nfor i in 1 2; do A=2; done\nrun $A", [None]),
        ("A=1\nread A\nrun $A", [None]),
        ("A=1\nsource env.sh\nrun $A", [None]),
        ("A=1\nsource ~/venv/bin/activate\nrun $A", ["1"]),
        ("A=1\n(A=2)\nrun $A", ["1"]),
        ("A=1\neval 'A=2'\nrun $A", ["2"]),
        ("f() { run $1; }\nf 3", ["3"]),
        ("f() { local A=2; }\nA=1\nf\nrun $A", ["1"]),
        ("A=(1 '2 3')\nA+=(4)\nrun \"${A[@]}\"", ["1", "2 3", "4"]),
        ('A=(1)\nif x; then A+=(2); fi\nrun "${A[@]}"', ["1", None]),
        ("local A=2\nrun $A", [None]),  # bash refuses it outside a function
        ("run ${A:='x y'}z", ["x", "yz"]),
        ("bash -c 'run $1 ${2:-b}' sh a", ["a", "b"]),
        ('A=($# 2)\nrun "${A:-3}"', [None]),
        ("N=2\nrun $((N * 8))", ["16"]),
        ("run $((N * 8))", [None]),
        ("run *.py 'a*' k=[a,b]", [None, "a*", "k=[a,b]"]),
        ("run a \\\n  b # c\n", ["a", "b"]),
        ("read -r -d '' A <<EOF\n  x \\\n  y\nEOF\nrun $A", ["x", "y"]),
    ],
)
def test_words(script: str, words: list[str | None]) -> None:
    assert _words(script) == [words]


def test_a_quoted_script_is_followed() -> None:
    script = 'export A=1\nB=2\nsrun bash -c "run $B \\$A \\$C"\nrun last'
    inner, last = (command for command in parse_script(script).commands if command.name == "run")
    assert [word.literal for word in inner.words] == ["run", "2", "1", None]
    assert [word.text for word in inner.outer[:2]] == ["srun", "bash"]
    assert last.outer == ()


def test_a_word_has_its_place_even_in_a_variable() -> None:
    script = "ARGS=\"\n  --lr 1\n  --bf16\"\nrun $ARGS '\n x'"
    words = parse_script(script).commands[0].words
    assert [(word.text, word.line, word.column) for word in words[:4]] == [
        ("run", 4, 1),
        ("--lr", 2, 3),
        ("1", 2, 8),
        ("--bf16", 3, 3),
    ]


def test_a_heredoc_is_a_file() -> None:
    script = "N=3\ncat > ds.json <<EOF\n{\"stage\": $N}\nEOF\ncat <<'EOF' > raw\n$N\nEOF\ntee t <<-EOF\n\ta\n\tEOF\n"
    files = parse_script(script).files
    assert {name: body.literal for name, body in files.items()} == {
        "ds.json": '{"stage": 3}\n',
        "raw": "$N\n",
        "t": "a\n",
    }


def test_lines_behind_a_fault_are_read_without_variables() -> None:
    script = parse_script("A=1\nB=x )\nrun $A x\n")
    assert script.unread_line == 2
    assert [word.literal for word in script.commands[-1].words] == ["run", None, "x"]


def test_a_placeholder_is_an_open_word() -> None:
    script = parse_script("run --ip <node 1> --port <port>\n")
    assert script.unread_line == 1
    assert [word.literal for word in script.commands[-1].words] == ["run", "--ip", None, "--port", None]
    assert script.commands[-1].words[3].column == 19


_HOSTILE = {
    "deep": "(" * 100_000,
    "substitutions": "$(" * 50_000,
    "quotes": '"$(' * 50_000,
    "pipes": "a | " * 50_000,
    "closers": ")\n" * 50_000,
    "heredocs": "<<A " * 20_000,
    "braces": "run " + "{," * 50_000,
    "brackets": "run " + "[" * 100_000,
    "doubles": "A=xxxx\n" + "A=$A$A\n" * 200 + "run $A",
    "arrays": "A=(a)\n" + 'A+=("${A[@]}" "${A[@]}")\n' * 200 + 'run "${A[@]}"',
    "calls": "".join(f"f{n}() {{ f{n + 1}; f{n + 1}; }}\n" for n in range(60)) + "f60() { run; }\nf0",
    "recursion": "f() { f; f; }\nf",
    "evaluation": 'A=\'eval "$A"\'\neval "$A"',
    "branches": "".join(f"v{n}=1\n" for n in range(3_000)) + "if x; then y; fi\n" * 3_000,
    "nothing": "\0" * 100_000,
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_a_hostile_script_ends(name: str) -> None:
    script = parse_script(_HOSTILE[name])
    assert sum(len(command.words) for command in script.commands) < 200_000
    assert sum(len(word.pieces) for command in script.commands for word in command.words) < 200_000


def test_a_large_script_is_not_read() -> None:
    script = parse_script("run\n" * 300_000)
    assert script.commands == ()
    assert script.unread_line == 1
