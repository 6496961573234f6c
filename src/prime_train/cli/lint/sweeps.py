"""Judges each config in a sweep, and places what is wrong at the key there. Starts nothing."""

# ruff: noqa: PTH118, PTH120 - paths are texts here

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from prime_train.config.detect import to_text
from prime_train.config.foreign.values import YAML_SUFFIXES
from prime_train.config.sweep import Sweep, find_base, parse_sweep, read_sweep
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.findings import NO_PATCH, Finding, TextSpan
from prime_train.core.redaction import MASK, is_secret_name
from prime_train.core.units import counted
from prime_train.rules.judge import Verdict
from prime_train.toml.document import Document, patched

Source = tuple[str, str]  # (text, path)
Read = Callable[[str], Source]
_MOST_NAMED = 4  # keys of a config that a finding names
_TOP = TextSpan(1, 1, 1, 2)


class SweptConfig(NamedTuple):
    """A sweep and the config that each of its configs changes."""

    base: Source
    sweep: Sweep


def find_sweep(sources: Sequence[Source], read: Read) -> SweptConfig | None:
    """The sweep of `sweep.yaml`, or of `base.toml + sweep.yaml`; None for other sources.

    Raises UserError for a sweep that cannot be read, or whose config is not known.
    """
    text, path = sources[-1]
    document = parse_sweep(text, path) if len(sources) <= len(SweptConfig._fields) else None
    if document is None:
        return None
    sweep = read_sweep(document)
    if len(sources) == len(SweptConfig._fields):
        return SweptConfig(sources[0], sweep)
    base = _locate(sweep.base, path)
    if base is None:
        raise UserError(
            what=f"it is a sweep of {sweep.base}, which is not there" if sweep.base else "it is a sweep of no config",
            where=path,
            why="the values of a sweep are judged within the config that they change",
            fix=f"prime-train lint BASE + {path}, or write the path of BASE into the sweep: base: run.toml",
        )
    return SweptConfig(read(base), sweep)


def is_sweep(text: str, path: str) -> bool:
    """Whether a text is a sweep of a config that is there."""
    document = parse_sweep(text, path)
    return document is not None and _locate(find_base(document.values), path) is not None


def _locate(base: str, path: str) -> str | None:
    """Where the config is that a sweep names: beside the sweep, or in the working directory."""
    places = (os.path.normpath(os.path.join(os.path.dirname(path), base)), base) if base else ()
    return next(filter(os.path.isfile, places), None)


def judge_sweep(swept: SweptConfig, judge: Callable[[str, str], Verdict]) -> list[Verdict]:
    """The verdict on the base, with the findings that all configs share, and on the sweep, with the others."""
    (text, path), sweep = swept
    own = judge(text, path)
    base = _parse(text, path)
    counts: dict[tuple[str, str], int] = {}
    firsts: dict[tuple[str, str], tuple[Finding, Mapping[str, Any]]] = {}
    for config in sweep.configs:
        found = judge(to_text(_set(base, config, sweep), path), path)
        for finding in {(each.code, each.key): each for each in reversed(found.findings)}.values():
            identity = (finding.code, finding.key)
            counts[identity] = counts.get(identity, 0) + 1
            firsts.setdefault(identity, (finding, config))
    by_itself = {(each.code, each.key) for each in own.findings}
    shared = {identity for identity in by_itself if counts.get(identity) == len(sweep.configs)}
    swept_findings = tuple(
        _place(finding, config, counts[identity], sweep)
        for identity, (finding, config) in firsts.items()
        if identity not in shared
    )
    kept = tuple(each for each in own.findings if (each.code, each.key) in shared)
    others = own._replace(
        path=sweep.document.path, findings=tuple(sorted(swept_findings, key=lambda each: each.span)), skipped=()
    )
    return [own._replace(findings=kept), others]


def note_unjudged(swept: SweptConfig) -> UserError | None:
    """A note if the sweep has more configs than are judged."""
    sweep = swept.sweep
    if len(sweep.configs) == sweep.total:
        return None
    what = (
        f"{len(sweep.configs):,} of its {sweep.total:,} configs are judged: each value, and a part of the combinations"
    )
    why, fix = "a rule about two keys may miss a combination", "judge a part of the sweep by itself"
    return UserError(what, sweep.document.path, why, fix, ExitCode.OK)


def _parse(text: str, path: str) -> Document:
    if path.endswith(YAML_SUFFIXES):
        from prime_train.config.foreign.document import read_documents

        documents = read_documents(text, path)
        document = documents[0] if len(documents) == 1 else None
    else:
        document = Document.parse(text, path)
    if document is None or document.fault is not None:
        raise UserError(
            what="the config of the sweep cannot be read",
            where=path,
            why=document.fault.what if document is not None and document.fault else "it has several documents",
            fix=f"prime-train lint {path}",
        )
    return document


def _set(base: Document, config: Mapping[str, Any], sweep: Sweep) -> dict[str, Any]:
    try:
        return patched(base.values, config)
    except (AttributeError, TypeError, IndexError, KeyError):
        raise UserError(
            what=f"{_name(config)} cannot be set in {base.path}",
            where=sweep.document.path,
            why="a key above it is no table there, or a list is shorter",
            fix="prime-train config show BASE --resolved shows its keys",
        ) from None


def _place(finding: Finding, config: Mapping[str, Any], count: int, sweep: Sweep) -> Finding:
    """The finding at the key that it is about; else at the first key that the config sets."""
    written = sweep.places.get(finding.key) or next(
        (sweep.places[key] for key in config if finding.key.startswith(f"{key}.")), ()
    )
    place = sweep.document.nearest(written or next(iter(sweep.places.values()), ()))
    where = f" (in {count} of {counted(len(sweep.configs), 'config')}: {_name(config)})"
    return finding._replace(
        path=sweep.document.path,
        span=_TOP if place is None else place.key,
        what=f"{finding.what}{where}",
        patch=NO_PATCH,
        safe=False,
    )


def _name(config: Mapping[str, Any]) -> str:
    shown = list(config.items())[:_MOST_NAMED]
    named = [f"{key} = {MASK if is_secret_name(key) else repr(value)}"[:80] for key, value in shown]
    return ", ".join([*named, "..."] if len(config) > _MOST_NAMED else named)
