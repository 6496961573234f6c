"""Reads bash scripts without running them: `script.py` gives the commands that a script may start.

`syntax.py` and `word_reader.py` parse, `expand.py` gives each word its text, `walk.py` follows the statements with the
values that are certain at each point (`state.py`). A word is known only if bash itself gives the command that text,
in every environment; `${NAME:-text}` counts as the default of the script. tests/system compares with bash.

The parser is one of its own because tree-sitter's grammar for bash is not safe on a hostile text: 64,000 characters of
`a | ` take it 2 GiB, and 256,000 of `)` end the process.
"""
