"""Puts typical mistakes into config files and counts how many lint finds, with the right line and the right repair.

Each file without errors gives a few mutants of each kind, chosen by a seed: a letter dropped from a key, two sections
swapped, a value of a wrong type or out of bounds, a key of another prime-rl generation, a key set twice, a wrong member
of a union, a wrong unit. A mutant counts as found if lint reports something that it does not report for the file. The
line is right if a finding covers the change; the repair is right if the first fix names the original key.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import record

from prime_train.core.findings import Finding, Severity, TextSpan
from prime_train.rules.judge import Verdict, lint
from prime_train.toml.document import Document, KeyPath, dotted

_BOUNDED = {  # keys with a limit in every generation -> a value beyond the limit
    **dict.fromkeys(("lr", "max_steps", "batch_size", "seq_len", "interval", "group_size", "max_norm"), "-3"),
    **dict.fromkeys(("rollouts_per_example", "num_train_gpus", "num_infer_gpus", "rank", "micro_batch"), "-3"),
    **dict.fromkeys(("keep_last", "max_tokens", "max_completion_tokens", "ctx_tokens", "layers"), "-3"),
    "temperature": "-1.5",
}
_TOKENS = ("seq_len", "max_tokens", "max_completion_tokens", "max_model_len", "ctx_tokens", "batch_size", "max_steps")
_FREE_FORM = ("args", "env_vars", "extra_body", "kwargs", "headers", "decode_scorer_overrides")
_UNITS = ('"4k"', "4e9", '"2 GB"', "2.5e3")
_OTHER_GENERATION = {  # header -> its name in another generation
    "2026-01": {"orchestrator.env": "orchestrator.train.env", "inference.model": "inference.vllm"},
    "2026-05": {
        "orchestrator.train.env": "orchestrator.env",
        "inference.model": "inference.vllm",
        "wandb": "monitors.wandb",
    },
    "2026-08": {
        "orchestrator.train.source": "orchestrator.train.env",
        "inference.vllm": "inference.model",
        "monitors.wandb": "wandb",
        "orchestrator.algo": "orchestrator.advantage",
    },
}
_GENERATION = re.compile(r"2026-\d\d")


class Mutant(NamedTuple):
    """A changed text, the changed lines, and the misspelt key (() if none)."""

    kind: str
    text: str
    lines: frozenset[int]
    meant: KeyPath = ()


class Leaf(NamedTuple):
    path: KeyPath
    key: TextSpan
    value: TextSpan
    content: Any


Make = Callable[[str, list[Leaf], str, random.Random], Mutant | None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--per-kind", type=int, default=3, help="mutants per kind and file")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--missed", type=Path, help="write the missed mutants to this file, one JSON line each")
    options = parser.parse_args()
    mutants: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for number, folder in enumerate(options.folder):  # each with a seed of its own
        found: list[dict[str, Any]] = []
        used = 0
        for path in sorted(folder.rglob("*.toml")):
            of_file = list(_judged(path, folder, options.per_kind, options.seed + number))
            used += bool(of_file)
            found.extend(of_file)
        kinds = [name for name in MAKERS if any(item["kind"] == name for item in found)]
        rows += [_row(folder.name, kind, [item for item in found if item["kind"] == kind], used) for kind in kinds]
        rows.append(_row(folder.name, "all", found, used))
        mutants += found
    if options.missed:
        wrong = [item for item in mutants if not item["found"] or not item["line"] or item["repair"] is False]
        options.missed.write_text("".join(json.dumps(item) + "\n" for item in wrong), encoding="utf-8")
    record.write("lint_mutants", rows)


def _row(files_of: str, kind: str, mutants: list[dict[str, Any]], files: int) -> dict[str, Any]:
    repairs = [item["repair"] for item in mutants if item["repair"] is not None]
    row = {
        "what": f"lint, mutants: {kind}",
        "n": len(mutants),
        "set": files_of,
        "files": files,
        "found_percent": _percent([item["found"] for item in mutants]),
        "right_line_percent": _percent([item["line"] for item in mutants if item["found"]]),
        "right_repair_percent": _percent(repairs) if repairs else None,
        "machine": record.machine(),
        "commit": record.commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    print(json.dumps(row), flush=True)
    return row


def _percent(held: list[bool]) -> float:
    return round(100 * sum(held) / len(held), 1) if held else 0.0


def _judged(path: Path, folder: Path, per_kind: int, seed: int) -> Iterator[dict[str, Any]]:
    text = path.read_text(encoding="utf-8")
    name = str(path.relative_to(folder))
    marked = _GENERATION.search(str(path))
    generation = marked.group() if marked else None
    base = lint(text, name, generation)
    if base.worst is Severity.ERROR or base.run is None:
        return
    leaves = _leaves(Document.parse(text, name))
    for kind, make in MAKERS.items():
        chance = random.Random(f"{seed} {name} {kind}")
        made: set[str] = set()
        for _ in range(per_kind):
            mutant = make(text, leaves, generation or "", chance)
            if mutant is None or mutant.text == text or mutant.text in made:
                continue
            made.add(mutant.text)
            fresh = _fresh(base, lint(mutant.text, name, generation))
            yield {
                "kind": kind,
                "file": name,
                "found": bool(fresh),
                "line": any(mutant.lines & set(range(f.span.line, f.span.end_line + 1)) for f in fresh),
                "repair": _names(fresh, mutant) if mutant.meant else None,
                "lines": sorted(mutant.lines),
                "said": [f"{f.span.line} {f.code} {f.what}; {f.fix}" for f in fresh[:3]],
                "changed": [line for n, line in enumerate(mutant.text.split("\n"), 1) if n in mutant.lines][:2],
            }


def _fresh(base: Verdict, verdict: Verdict) -> list[Finding]:
    """The findings of the mutant that the original file does not have."""
    known = {(finding.code, finding.key, finding.what) for finding in base.findings}
    return [finding for finding in verdict.findings if (finding.code, finding.key, finding.what) not in known]


def _names(fresh: list[Finding], mutant: Mutant) -> bool:
    """Whether the finding on the misspelt key suggests the original name."""
    here = [finding for finding in fresh if finding.span.line in mutant.lines]
    if not here:
        return False
    meant, last = dotted(mutant.meant), str(mutant.meant[-1])
    first = next((finding for finding in here if finding.patch), here[0])
    return first.patch.get(meant) is not None or bool(re.search(rf"\b{re.escape(last)}\b", first.fix))


def _leaves(document: Document) -> list[Leaf]:
    """Every key that is set on its own line, as `key = value`."""
    found: list[Leaf] = []
    stack: list[tuple[KeyPath, Any]] = [((), document.values)]
    while stack:
        path, value = stack.pop()
        place = document.place(path)
        if path and place is not None and place.written and isinstance(path[-1], str):
            found.append(Leaf(path, place.key, place.value, value))
        if isinstance(value, dict):
            stack.extend(((*path, key), below) for key, below in value.items())
        elif isinstance(value, list) and all(isinstance(item, dict) for item in value):
            stack.extend(((*path, number), item) for number, item in enumerate(value))
    return sorted(found, key=lambda leaf: (leaf.key.line, leaf.key.column))


def _put(text: str, span: TextSpan, new: str) -> str:
    """The text with a span of one line replaced by `new`."""
    lines = text.split("\n")
    line = lines[span.line - 1]
    lines[span.line - 1] = line[: span.column - 1] + new + line[span.end_column - 1 :]
    return "\n".join(lines)


def _on_one_line(leaves: list[Leaf]) -> list[Leaf]:
    return [leaf for leaf in leaves if leaf.value.line == leaf.value.end_line]


def _dropped_letter(text: str, leaves: list[Leaf], _: str, chance: random.Random) -> Mutant | None:
    free = [leaf for leaf in leaves if _is_plain(leaf, text) and not _is_free_form(leaf.path)]
    if not free:
        return None
    leaf = chance.choice(free)
    name = str(leaf.path[-1])
    at = chance.randrange(1, len(name))
    start = leaf.key.end_column - len(name)
    span = TextSpan(leaf.key.line, start, leaf.key.line, leaf.key.end_column)
    return Mutant("dropped letter", _put(text, span, name[:at] + name[at + 1 :]), frozenset({leaf.key.line}), leaf.path)


def _is_plain(leaf: Leaf, text: str) -> bool:
    """Whether the key has no quotes and is long enough to lose a letter."""
    name = str(leaf.path[-1])
    return len(name) >= 4 and text.split("\n")[leaf.key.line - 1][: leaf.key.end_column - 1].endswith(name)


def _is_free_form(path: KeyPath) -> bool:
    """Whether the key is in a table with free keys: arguments of an environment, environment variables."""
    of_environment = any(a == "env" and isinstance(b, str) for a, b in pairwise(path))
    return of_environment or any(part in _FREE_FORM for part in path[:-1])


def _swapped_sections(text: str, _: list[Leaf], __: str, chance: random.Random) -> Mutant | None:
    lines = text.split("\n")
    headers = [n for n, line in enumerate(lines) if re.match(r"\[[\w.-]+\]\s*(#.*)?$", line)]
    bodies = {n: next((m for m in headers if m > n), len(lines)) for n in headers}
    full = [n for n in headers if any("=" in line for line in lines[n + 1 : bodies[n]])]
    if len(full) < 2:
        return None
    first, second = sorted(chance.sample(full, 2))
    lines[first], lines[second] = lines[second], lines[first]
    touched = {*range(first + 1, bodies[first] + 1), *range(second + 1, bodies[second] + 1)}
    return Mutant("swapped sections", "\n".join(lines), frozenset(touched))


def _wrong_type(text: str, leaves: list[Leaf], _: str, chance: random.Random) -> Mutant | None:
    plain = [
        leaf for leaf in _on_one_line(leaves) if not isinstance(leaf.content, dict) and not _is_free_form(leaf.path)
    ]
    if not plain:
        return None
    leaf = chance.choice(plain)
    match leaf.content:
        case bool():
            new = '"perhaps"'
        case int() | float():
            new = '"many"'
        case str():
            new = "[[7]]"
        case _:
            new = "3.5"
    return Mutant("wrong type", _put(text, leaf.value, new), frozenset({leaf.key.line}))


def _out_of_bounds(text: str, leaves: list[Leaf], _: str, chance: random.Random) -> Mutant | None:
    bounded = [leaf for leaf in _on_one_line(leaves) if leaf.path[-1] in _BOUNDED and not _is_free_form(leaf.path)]
    if not bounded:
        return None
    leaf = chance.choice(bounded)
    return Mutant("out of bounds", _put(text, leaf.value, _BOUNDED[str(leaf.path[-1])]), frozenset({leaf.key.line}))


def _other_generation(text: str, _: list[Leaf], generation: str, chance: random.Random) -> Mutant | None:
    names = _OTHER_GENERATION.get(generation, {})
    there = [old for old in names if re.search(rf"(?m)^\[\[?{re.escape(old)}\]", text)]
    if not there:
        return None
    old = chance.choice(there)
    header = re.compile(rf"(\[\[?){re.escape(old)}(?=[.\]])")
    lines = text.split("\n")
    touched: set[int] = set()
    inside = False
    for number, line in enumerate(lines):
        if line.startswith("["):
            inside = header.match(line) is not None
            lines[number] = header.sub(rf"\g<1>{names[old]}", line)
        if inside:
            touched.add(number + 1)
    return Mutant("other generation", "\n".join(lines), frozenset(touched))


def _set_twice(text: str, leaves: list[Leaf], _: str, chance: random.Random) -> Mutant | None:
    lines = text.split("\n")
    alone = [leaf for leaf in _on_one_line(leaves) if leaf.key.column == 1]
    if not alone:
        return None
    leaf = chance.choice(alone)
    lines.insert(leaf.key.line, lines[leaf.key.line - 1])
    return Mutant("set twice", "\n".join(lines), frozenset({leaf.key.line, leaf.key.line + 1}))


def _wrong_member(text: str, leaves: list[Leaf], _: str, chance: random.Random) -> Mutant | None:
    members = [
        leaf for leaf in _on_one_line(leaves) if leaf.path[-1] in ("type", "kind") and not _is_free_form(leaf.path)
    ]
    if not members:
        return None
    leaf = chance.choice(members)
    return Mutant("wrong union member", _put(text, leaf.value, '"nonesuch"'), frozenset({leaf.key.line}))


def _units(text: str, leaves: list[Leaf], _: str, chance: random.Random) -> Mutant | None:
    counted = [leaf for leaf in _on_one_line(leaves) if leaf.path[-1] in _TOKENS and not _is_free_form(leaf.path)]
    if not counted:
        return None
    leaf = chance.choice(counted)
    return Mutant("unit mistake", _put(text, leaf.value, chance.choice(_UNITS)), frozenset({leaf.key.line}))


MAKERS: dict[str, Make] = {
    "dropped letter": _dropped_letter,
    "swapped sections": _swapped_sections,
    "wrong type": _wrong_type,
    "out of bounds": _out_of_bounds,
    "other generation": _other_generation,
    "set twice": _set_twice,
    "wrong union member": _wrong_member,
    "unit mistake": _units,
}


if __name__ == "__main__":
    main()
