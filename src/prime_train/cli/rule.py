"""`prime-train rule`: lists the rules, or explains one with its examples."""

import sys
from typing import Annotated, Any

import typer

from prime_train.cli.options import AsJson, NoColor
from prime_train.cli.render import json_text, paint, table
from prime_train.core.errors import UserError
from prime_train.rules.explain import explain
from prime_train.rules.families import load_all
from prime_train.rules.rule import Rule
from prime_train.toml.did_you_mean import nearest


def rule(
    code: Annotated[
        str | None,
        typer.Argument(metavar="[CODE]", help="A rule, such as BAT001, else all.", show_default=False),
    ] = None,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """List the rules, or explain one.

    Examples:

      prime-train rule

      prime-train rule BAT001
    """
    rules = list(load_all().values()) if code is None else [_find_rule(code.upper())]
    if as_json:
        document = {"version": 1, "rules": [_json(item) for item in rules]}
        typer.echo(json_text(document))
    else:
        typer.echo(_list(rules) if code is None else _page(rules[0]))


def _find_rule(code: str) -> Rule:
    rules = load_all()
    if code in rules:
        return rules[code]
    meant = nearest(code, rules)
    raise UserError(
        what=f"no rule is called {code}",
        where=f"prime-train rule {code}",
        why=f"did you mean {meant}?" if meant else "a code is three letters and three digits",
        fix=f"prime-train rule {meant}" if meant else "prime-train rule lists all rules",
    )


def _list(rules: list[Rule]) -> str:
    rows = [
        (item.code, str(item.severity), ", ".join(item.needs) or "-", explain(item).summary)
        for item in sorted(rules, key=lambda item: item.code)
    ]
    return table(rows, ("code", "severity", "needs", "rule"))


def _page(item: Rule) -> str:
    page = explain(item)
    parts = [f"{paint(item.code, 'bold', sys.stdout)}  {item.severity}  {page.summary}", page.why, *page.notes]
    if item.needs:
        parts.append(f"Checked by validate and run, because it needs facts: {', '.join(item.needs)}.")
    for label, examples in (("Bad", page.bad), ("Good", page.good)):
        for example in examples:
            indented = "\n".join(f"    {line}" if line else "" for line in example.rstrip().split("\n"))
            parts.append(f"{label}:\n{indented}")
    return "\n\n".join(part for part in parts if part)


def _json(item: Rule) -> dict[str, Any]:
    page = explain(item)
    return {
        "code": item.code,
        "name": item.name.replace("_", "-"),
        "severity": str(item.severity),
        "needs": list(item.needs),
        "summary": page.summary,
        "why": page.why,
        "notes": list(page.notes),
        "bad": list(page.bad),
        "good": list(page.good),
    }
