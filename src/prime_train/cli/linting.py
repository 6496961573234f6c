"""Does the work of `prime-train lint`: finds the files, judges them, lays out what is to be printed. Prints nothing.

Without typer, rich and pathlib, whose imports take longer than a lint.
"""

# pathlib takes longer to import than this takes to run.
# ruff: noqa: PTH112, PTH118

import os
import sys

from prime_train.errors import UserError
from prime_train.rules.judge import Verdict
from prime_train.rules.judge import lint as judge

FORMATS = ("full", "concise", "json", "github", "sarif")
_NOT_SEARCHED = frozenset({"node_modules", "__pycache__", "venv"})


def check(
    paths: list[str],
    wanted: tuple[str, ...] = (),
    unwanted: tuple[str, ...] = (),
    output_format: str = "full",
    repair: str = "",
) -> tuple[str, bool]:
    """(what to print, whether no finding is at error level). Raises UserError where a file cannot be read.

    `wanted` and `unwanted` are codes or prefixes of codes; no wanted ones means all. `repair` is "fix": the
    files are fixed, and what is left is told; or "diff": the change is shown, and what was found decides.
    """
    from prime_train.dialects.read import read_config

    _refuse_unknown(wanted, "--select")
    _refuse_unknown(unwanted, "--ignore")

    def selected(verdict: Verdict) -> Verdict:
        return verdict.only(wanted or None, unwanted) if wanted or unwanted else verdict

    sources = [read_config(path) for path in _files(paths or ["."])]
    if repair:
        from prime_train.cli.fixing import repaired

        done = repaired(sources, judge, selected, write=repair == "fix")
        verdicts = list(done.verdicts)
        output = _rendered(verdicts, output_format, done.fixed) if repair == "fix" else done.diff
    else:
        verdicts = [selected(judge(text, path)) for text, path in sources]
        output = _rendered(verdicts, output_format)
    return output, all(verdict.ok for verdict in verdicts)


def _rendered(verdicts: list[Verdict], output_format: str, fixed: int = 0) -> str:
    from prime_train.cli.render import paint
    from prime_train.views import findings as view

    def painted(text: str, style: str) -> str:
        return paint(text, style, sys.stdout)

    match output_format:
        case "json":
            import json

            return json.dumps(view.lint_json(verdicts), indent=1, ensure_ascii=False)
        case "sarif":
            import json

            from prime_train.views.sarif import sarif

            return json.dumps(sarif(verdicts), indent=1, ensure_ascii=False)
        case "github":
            blocks = [view.github(verdict) for verdict in verdicts]
        case "concise":
            blocks = [view.concise(verdict, painted) for verdict in verdicts]
        case _:
            blocks = [view.full(verdict, painted) for verdict in verdicts] + [view.summary(verdicts, fixed)]
    return "\n".join(block for block in blocks if block)


def _refuse_unknown(codes: tuple[str, ...], option: str) -> None:
    """Raises UserError for a code that no rule has: it would select or silence nothing."""
    from prime_train.rules.catalogue import RULES

    for code in codes:
        if not any(known.startswith(code) for known in RULES):
            raise UserError(
                what=f"no rule is called {code} or begins so",
                where=f"{option} {code}",
                why=f"the families are {', '.join(sorted({known[:3] for known in RULES}))}",
                fix="prime-train rule lists all of them",
            )


def _files(paths: list[str]) -> list[str]:
    """The config files among `paths`: files as they are, folders searched for those that are ours."""
    found: list[str] = []
    for path in paths:
        if path != "-" and os.path.isdir(path):
            found.extend(_search(path))
        else:
            found.append(path)
    return list(dict.fromkeys(found))


def _search(folder: str) -> list[str]:
    """The run.toml files under a folder. Raises UserError where there is none: nothing checked is not clean."""
    found: list[str] = []
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _NOT_SEARCHED)
        files = [os.path.join(where, name) for name in sorted(names) if name.endswith(".toml")]
        found.extend(os.path.normpath(file) for file in files if _is_ours(file))
    if not found:
        raise UserError(
            what="there is no config of prime-train in it",
            where=folder,
            why="folders are searched for *.toml files with [run] and [data]",
            fix="name the file, or start from a preset: prime-train lint quickstart",
        )
    return found


def _is_ours(path: str) -> bool:
    """Whether the file is a run.toml. One that is not TOML is ours when it has a line [run]."""
    import tomli

    from prime_train.dialects import native

    try:
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            text = file.read()
    except OSError:
        return False
    try:
        return native.recognises(tomli.loads(text))
    except (ValueError, RecursionError):
        return any(line.strip() == "[run]" for line in text.splitlines())
