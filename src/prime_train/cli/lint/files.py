"""The work of `prime-train lint`: judges the files and renders the verdicts. Prints nothing.

It is apart from lint.py because cli/entry.py runs it without typer, whose import takes longer than a lint.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

from prime_train.cli.lint.search import MERGE, group_paths
from prime_train.cli.lint.sweeps import SweptConfig, find_sweep, judge_sweep, note_unjudged
from prime_train.core.errors import UserError
from prime_train.rules.judge import Verdict, compare, lint, lint_merged

if TYPE_CHECKING:
    from prime_train.cli.lint.fix import Repair, Repaired


def check(
    paths: list[str],
    wanted: tuple[str, ...] = (),
    unwanted: tuple[str, ...] = (),
    output_format: str = "full",
    repair: Repair | None = None,
    *,
    prime_rl: str | None = None,
    unread: list[UserError] | None = None,
    strict: bool = False,
) -> tuple[str, bool]:
    """(text to print, whether no finding is at error level, or at warning level if `strict`).

    Raises UserError if a file cannot be read.

    `wanted` and `unwanted` are codes or prefixes of codes; an empty `wanted` means all. With `repair.write` the files
    are fixed and the findings are those that remain; else the findings are those of the files as they are.
    `prime_rl` is the generation of prime-rl files that name none. With `unread`, the errors of what cannot be read in
    a searched folder are appended to it, and the other files are checked.
    """
    from prime_train.config.detect import read_config

    _refuse_unknown(wanted, "--select")
    _refuse_unknown(unwanted, "--ignore")
    refuse_generation(prime_rl)

    def select(verdict: Verdict) -> Verdict:
        return verdict.only(wanted or None, unwanted) if wanted or unwanted else verdict

    groups = group_paths(paths or ["."], unread)
    sources = [tuple(read_config(path) for path in group) for group in groups]
    judge = partial(lint, prime_rl=prime_rl)
    swept = [find_sweep(parts, read_config) for parts in sources]
    if repair:
        from prime_train.cli.lint.fix import fix_files

        _refuse_sweeps(sources, swept, repair.option)

        done = fix_files(_single_files(sources, repair.option), judge, select, repair=repair)
        verdicts = compare(done.verdicts)
        output = render(verdicts, output_format, done.texts, done) if repair.write else _paint_diff(done.diff)
    else:
        judged: list[Verdict] = []
        alone = {parts[0][1] for parts, sweep in zip(sources, swept, strict=True) if len(parts) == 1 and sweep is None}
        for parts, sweep in zip(sources, swept, strict=True):
            if sweep is not None:
                judged += (verdict for verdict in judge_sweep(sweep, judge) if verdict.path not in alone)
                if unread is not None and (note := note_unjudged(sweep)) is not None:
                    unread.append(note)
            else:
                judged.append(judge(*parts[0]) if len(parts) == 1 else lint_merged(parts, prime_rl))
        verdicts = compare(map(select, judged))
        texts = {path: text for parts in sources for text, path in parts}
        texts |= {sweep.base[1]: sweep.base[0] for sweep in swept if sweep is not None}
        output = render(verdicts, output_format, texts)
    return output, all(verdict.passes(strict=strict) for verdict in verdicts)


def _refuse_sweeps(sources: list[tuple[tuple[str, str], ...]], swept: list[SweptConfig | None], option: str) -> None:
    for parts, sweep in zip(sources, swept, strict=True):
        if sweep is not None and len(parts) == 1:
            raise UserError(
                what=f"{option} cannot fix a sweep",
                where=parts[0][1],
                why="a fix could belong into the sweep or into its config",
                fix=f"prime-train lint {parts[0][1]}, then correct it by hand",
            )


def _single_files(sources: list[tuple[tuple[str, str], ...]], option: str) -> list[tuple[str, str]]:
    """The sources of one file each. Raises UserError for merged files, because a fix could belong in any of them."""
    for parts in sources:
        if len(parts) > 1:
            raise UserError(
                what=f"{option} cannot fix merged files",
                where=f" {MERGE} ".join(path for _, path in parts),
                why="a fix could belong in any of the files",
                fix=f"prime-train lint {option} {parts[0][1]}, then lint them together",
            )
    return [parts[0] for parts in sources]


def _paint_diff(diff: str) -> str:
    from prime_train.cli.terminal.render import painter

    paint = painter(sys.stdout)
    styles = {"---": "bold", "+++": "bold", "@@ ": "cyan"} | {"+": "green", "-": "red"}

    def painted(line: str) -> str:
        style = styles.get(line[:3]) or styles.get(line[:1])
        return paint(line, style) if style else line

    return "\n".join(map(painted, diff.split("\n")))


def render(verdicts: list[Verdict], output_format: str, texts: dict[str, str], done: Repaired | None = None) -> str:
    """The verdicts in a format. `texts`: path -> the text that was judged."""
    from prime_train.cli.terminal.render import fit_terminal, json_text, painter
    from prime_train.views import findings as view

    match output_format:
        case "json":
            return json_text(view.lint_json(verdicts))
        case "sarif":
            from prime_train.views.findings import sarif

            return json_text(sarif(verdicts))
        case "github":
            blocks = [view.github(verdict) for verdict in verdicts]
        case "concise":
            blocks = [view.concise(verdict, painter(sys.stdout)) for verdict in verdicts]
        case _:
            blocks = [view.full(verdict, painter(sys.stdout), texts) for verdict in verdicts] + [
                view.summary(verdicts, done.fixed, unsafe_left=done.unsafe_left)
                if done
                else view.summary(verdicts, offers=True)
            ]
            return fit_terminal("\n".join(block for block in blocks if block), sys.stdout)
    return "\n".join(block for block in blocks if block)


def _refuse_unknown(codes: tuple[str, ...], option: str) -> None:
    """Raises UserError for a code that no rule has."""
    if not codes:
        return
    from prime_train.rules.families import load_all

    rules = load_all()
    for code in codes:
        if not any(known.startswith(code) for known in rules):
            raise UserError(
                what=f"no rule is called {code}, and no code starts with it",
                where=f"{option} {code}",
                why=f"the families are {', '.join(sorted({known[:3] for known in rules}))}",
                fix="prime-train rule lists all rules",
            )


def refuse_generation(prime_rl: str | None) -> None:
    """Raises UserError if there is no table for the generation that --prime-rl names."""
    if prime_rl is None:
        return
    from prime_train.config.prime_rl.schema import generations

    if prime_rl not in generations():
        raise UserError(
            what=f"no generation of prime-rl is called {prime_rl}",
            where=f"--prime-rl {prime_rl}",
            why=f"known generations: {', '.join(generations())}",
            fix=f"--prime-rl {generations()[-1]}",
        )
