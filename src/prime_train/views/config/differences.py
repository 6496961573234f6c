"""Makes the document of a comparison, and shows it side by side or unified. Pure; secrets are masked by their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from prime_train.config.compare import ConfigComparison, describe_key
from prime_train.config.differences import Difference
from prime_train.supervise.launch.run_directory import ChangedValue
from prime_train.toml.document import to_toml
from prime_train.views.config.masked import is_secret_key, mask
from prime_train.views.text import Paint, rounded, sanitize

_LONGEST = 400  # letters of a value that a table shows
Document = Mapping[str, Any]


class ConfigImpact(NamedTuple):
    """What a change does by the estimate. None: not known, or nothing is trained."""

    gib: float | None  # more on GPU 0
    speed_ratio: float | None  # tokens/s after over before

    @property
    def document(self) -> dict[str, Any]:
        return {"gib": rounded(self.gib, 3), "speed_ratio": rounded(self.speed_ratio, 4), "text": self.text}

    @property
    def text(self) -> str:
        """ "+6.1 GiB on GPU 0, 4 % more tokens/s"; "" where neither changes."""
        memory = "" if self.gib is None or abs(self.gib) < 0.05 else f"{self.gib:+.1f} GiB on GPU 0"
        percent = 0.0 if self.speed_ratio is None else 100 * (self.speed_ratio - 1)
        speed = f"{abs(percent):.0f} % {'more' if percent > 0 else 'fewer'} tokens/s" if abs(percent) >= 0.5 else ""
        return ", ".join(filter(None, (memory, speed)))


class ConfigNotes(NamedTuple):
    """What is known beside the values. `impacts`: by key; `total`: of all changes together."""

    refused: Sequence[ChangedValue] = ()  # by a resume
    impacts: Mapping[str, ConfigImpact] = {}
    total: ConfigImpact | None = None
    metrics: Mapping[str, tuple[float | None, float | None]] = {}  # final ones that differ
    links: Sequence[str | None] = (None, None)  # at Weights & Biases
    notes: Sequence[str] = ()


def as_document(
    titles: Sequence[str], found: ConfigComparison, more: ConfigNotes, hidden: Sequence[str]
) -> dict[str, Any]:
    """The document for `config diff --json`."""
    rows = [_row(one, more, hidden) for one in found.differences]
    sides = [{"title": title, "wandb": link} for title, link in zip(titles, more.links, strict=True)]
    other = [one for one in more.refused if not any(_covers(one.name, row["key"]) for row in rows)]
    refused = [f"a resume refuses it: {one.name} would change, and {one.why}" for one in other]
    return {
        "version": 1,
        "before": sides[0],
        "after": sides[1],
        "equal": not rows,
        "differences": rows,
        "impact": None if more.total is None else more.total.document,
        "metrics": [{"name": name, "before": was, "after": value} for name, (was, value) in more.metrics.items()],
        "notes": [*found.notes, *refused, *more.notes],
    }


def _row(one: Difference, more: ConfigNotes, hidden: Sequence[str]) -> dict[str, Any]:
    refused = next((change.why for change in more.refused if _covers(change.name, one.key)), None)
    impact = more.impacts.get(one.key)
    return {
        "key": one.key,
        "before": mask(one.key, one.before, hidden),
        "after": mask(one.key, one.after, hidden),
        "secret": is_secret_key(one.key),
        "about": describe_key(one.key),
        "impact": None if impact is None else impact.document,
        "refused_by_resume": refused,
    }


def _covers(name: str, key: str) -> bool:
    return key == name or key.startswith(f"{name}.")


def show(value: Any) -> str:
    """A value as TOML on one line; "-" for none."""
    if value is None:
        return "-"
    try:
        text = to_toml(value)
    except TypeError:  # null in a list of YAML
        text = repr(value)
    text = sanitize(text).replace("\n", " ")
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def side_by_side(document: Document, paint: Paint) -> list[tuple[str, ...]]:
    """The rows of a table: mark, key, both values, note. "!" marks what a resume refuses."""
    return [
        (
            paint("!", "red") if row["refused_by_resume"] else " ",
            paint(sanitize(row["key"]), "bold"),
            *(paint(part, style) for part, style in zip(_mark_change(row), ("red", "green"), strict=True)),
            _note(row),
        )
        for row in document["differences"]
    ]


def _mark_change(row: Mapping[str, Any]) -> tuple[str, str]:
    """Both values; a secret that differs looks the same on both sides, so a word is added."""
    before, after = show(row["before"]), show(row["after"])
    return (before, f"{after} (differs)") if row["secret"] and before == after else (before, after)


def _note(row: Mapping[str, Any]) -> str:
    refused = row["refused_by_resume"]
    impact = row["impact"]["text"] if row["impact"] is not None else ""
    return "; ".join(filter(None, (impact, f"a resume refuses it: {refused}" if refused else "", row["about"])))


def unified(document: Document, paint: Paint) -> str:
    """The differences as `diff -u` has them, each below its note."""
    lines = [
        paint(f"--- {sanitize(document['before']['title'])}", "bold"),
        paint(f"+++ {sanitize(document['after']['title'])}", "bold"),
    ]
    for row in document["differences"]:
        before, after = _mark_change(row)
        note = _note(row)
        lines.append(paint(f"@@ {sanitize(row['key'])} @@" + (f" {note}" if note else ""), "cyan"))
        lines += [paint(f"-{sanitize(row['key'])} = {before}", "red")] if row["before"] is not None else []
        lines += [paint(f"+{sanitize(row['key'])} = {after}", "green")] if row["after"] is not None else []
    return "\n".join(lines)


def remarks(document: Document) -> list[tuple[str, str]]:
    """Label and text of what stands below the differences."""
    lines = []
    if document["impact"] is not None and document["impact"]["text"]:
        lines.append(("together", document["impact"]["text"]))
    lines += [
        (f"W&B {side}", document[side]["wandb"]) for side in ("before", "after") if document[side]["wandb"] is not None
    ]
    lines += [(one["name"], f"{_number(one['before'])} -> {_number(one['after'])}") for one in document["metrics"]]
    return [*lines, *(("note", note) for note in document["notes"])]


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:,.4g}"
