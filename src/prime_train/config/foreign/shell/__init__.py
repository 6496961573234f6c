"""Reads bash scripts without running them: `script.py` gives the commands that a script may start.

`syntax.py`, `simple_commands.py` and `word_reader.py` parse, `expand.py` and `arithmetic.py` give each word its text,
`walk.py` follows the statements with the values that are certain at each point (`state.py`, `variables.py`). A word is
known only if bash itself gives the command that text, in every environment; `${NAME:-text}` counts as the default of
the script. tests/system compares with bash.

The parser is one of its own because tree-sitter's grammar for bash is neither safe on a hostile text nor exact: 64,000
characters of `a | ` take it 2 GiB, 256,000 of `)` 35 s, and of 200 scripts of public trainers it judges 9 otherwise
than `bash -n`, this one none (measured with tree-sitter-bash 0.25.1, 2026-11; both import in 18 ms).
"""
