"""`prime-train rule`: lists the rules, all or those on a key, or explains one, or a signature of `diagnose`."""

import sys
from typing import Annotated, Any

import typer

from prime_train.cli.terminal.options import AsJson, NoColor
from prime_train.cli.terminal.render import fit_terminal, json_text, paint, table, terminal_columns
from prime_train.core.errors import UserError
from prime_train.diagnose.signatures import Signature, catalogue
from prime_train.rules.explain import explain
from prime_train.rules.families import load_all
from prime_train.rules.rule import Rule
from prime_train.toml.did_you_mean import nearest
from prime_train.views.text import pick


def _complete(incomplete: str) -> list[str]:
    codes = (*load_all(), *catalogue().by_id)
    return [code for code in codes if code.startswith(incomplete.upper())]


def rule(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="[CODE]",
            help="A rule, such as BAT001, or a signature of `diagnose`, such as VLLM018. Default: all rules.",
            autocompletion=_complete,
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="KEY",
            help="List the rules that read or name a key of run.toml or prime-rl, or keys below it: optim.beta2.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """List the rules, or those on a key, or explain one.

    Also explains a signature of `diagnose`.

    Examples:

      prime-train rule

      prime-train rule BAT001

      prime-train rule VLLM018

      prime-train rule --key optim.beta2
    """
    if key is not None:
        _show_rules_on(key, code, as_json=as_json)
        return
    signature = None if code is None else catalogue().by_id.get(code.upper())
    if signature is not None:
        document = {"version": 1, "signatures": [_signature_json(signature)]}
        typer.echo(json_text(document) if as_json else fit_terminal(_signature_page(signature), sys.stdout))
        return
    rules = list(load_all().values()) if code is None else [_find_rule(code.upper())]
    if as_json:
        document = {"version": 1, "rules": [_json(item) for item in rules]}
        typer.echo(json_text(document))
    else:
        typer.echo(_list(rules) if code is None else fit_terminal(_page(rules[0]), sys.stdout))


def _show_rules_on(key: str, code: str | None, *, as_json: bool) -> None:
    # Here, because a rule by its code needs no tables of prime-rl.
    from prime_train.rules.keys import find_near_keys, find_rules, is_key

    if code is not None:
        raise UserError(
            what="both a code and --key are given",
            where=f"prime-train rule {code} --key {key}",
            why="a code explains one rule, and --key lists several",
            fix=f"prime-train rule {code}, or prime-train rule --key {key}",
        )
    if not is_key(key):
        near = find_near_keys(key)
        raise UserError(
            what=f"neither a run.toml nor a prime-rl file has a key {key}",
            where=f"prime-train rule --key {key}",
            why=f"did you mean {' or '.join(near)}?" if near else "a key is written with its table: optim.beta2",
            fix=f"prime-train rule --key {near[0]}"
            if near
            else "prime-train schema export lists the keys of a run.toml",
        )
    rules = list(find_rules(key))
    if as_json:
        typer.echo(json_text({"version": 1, "key": key, "rules": [_json(item) for item in rules]}))
    else:
        typer.echo(_list(rules) if rules else f"{key}: no rule reads it; only its type and bounds are checked")


def _find_rule(code: str) -> Rule:
    rules = load_all()
    if code in rules:
        return rules[code]
    meant = nearest(code, (*rules, *catalogue().by_id))
    raise UserError(
        what=f"no rule or signature is called {code}",
        where=f"prime-train rule {code}",
        why=f"did you mean {meant}?" if meant else "a code is three letters and three digits",
        fix=f"prime-train rule {meant}" if meant else "prime-train rule lists all rules",
    )


def _list(rules: list[Rule]) -> str:
    rows = [
        (item.code, str(item.severity), ", ".join(item.needs) or "-", explain(item).summary)
        for item in sorted(rules, key=lambda item: item.code)
    ]
    return table(rows, ("code", "severity", "needs", "rule"), columns=terminal_columns(sys.stdout))


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


_RETRIES = {
    "yes": "the run is started again",
    "no": "the run is not started again",
    "after_fix": "the run is not started again before something is changed",
}


def _signature_page(item: Signature) -> str:
    parts = [
        f"{paint(item.id, 'bold', sys.stdout)}  {item.cause_class}  {item.what}",
        f"Why: {item.why}",
        f"Fix: {item.fix}",
        f"As a cause of a failure: {_RETRIES[item.retry]}.",
        f"Example:\n    {item.example}",
        f"Not this:\n    {item.not_example}",
        f"Source: {item.source}",
    ]
    return "\n\n".join(parts)


def _signature_json(item: Signature) -> dict[str, Any]:
    rest = pick(item, "retry", "what", "why", "fix", "example", "not_example", "source")
    return {"code": item.id, "class": item.cause_class} | rest


def _json(item: Rule) -> dict[str, Any]:
    head = {"code": item.code, "name": item.name.replace("_", "-"), "severity": str(item.severity), "needs": item.needs}
    return head | pick(explain(item), "summary", "why", "notes", "bad", "good")
