"""Compares several runs: the keys that differ, what each group reached, the curves; as text, JSON and CSV.

Reads the runs; decides nothing about them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from prime_train.config.differences import flatten, list_differences
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.core.units import counted
from prime_train.spec import RunSpec
from prime_train.supervise.launch.run_directory import read_run_spec
from prime_train.views.compare import repeats
from prime_train.views.compare.braille import LETTERS, STYLES, Drawn, plot
from prime_train.views.compare.curves import METRICS, Curves, read_curves
from prime_train.views.compare.listing import NOT_KNOWN, csv_text, value_text
from prime_train.views.compare.panels import Axes, Line, Panel, as_json, lay_out
from prime_train.views.compare.rows import RunRow, read_row
from prime_train.views.text import Paint, rounded, sanitize

MOST_RUNS = len(LETTERS)
_ROWS = 14  # for a plot in the terminal
_END_BYTES = 64 << 10
_NAMES = ("run.name", "run.dir")
_ROUNDED = 6
_TITLED = 6  # names that fit above the picture


class Compared(NamedTuple):
    """One run. `spec` is None where its config cannot be read."""

    label: str
    row: RunRow
    spec: RunSpec | None
    curves: Curves


class ComparedRuns(NamedTuple):
    """Runs beside each other. `differences`: each key with a value for each run."""

    runs: tuple[Compared, ...]
    axes: Axes
    groups: list[list[int]]
    results: list[dict[str, repeats.Result]]
    noise: list[repeats.Noise]
    differences: list[tuple[str, tuple[object, ...]]]
    panels: list[Panel]


def compare(run_dirs: Sequence[RunDir], axes: Axes, now_s: float) -> ComparedRuns:
    """Compares runs. Raises UserError for one that may not be read."""
    rows = [read_row(run_dir.path, now_s, _END_BYTES) for run_dir in run_dirs]
    names = [row.name for row in rows]
    labels = [row.name if names.count(row.name) == 1 else str(row.path) for row in rows]
    runs = tuple(
        Compared(label, row, _read_spec(run_dir), read_curves(run_dir))
        for run_dir, row, label in zip(run_dirs, rows, labels, strict=True)
    )
    curves, specs = [run.curves for run in runs], [run.spec for run in runs]
    groups = repeats.group(specs)
    results = repeats.results(curves, groups)
    panels = lay_out(labels, curves, groups, axes)
    return ComparedRuns(runs, axes, groups, results, repeats.compare(results), list(_differences(specs)), panels)


def _read_spec(run_dir: RunDir) -> RunSpec | None:
    with suppress(UserError):  # the run has a row with the reason
        return read_run_spec(run_dir)
    return None


def _differences(specs: Sequence[RunSpec | None]) -> Iterator[tuple[str, tuple[object, ...]]]:
    known = [spec for spec in specs if spec is not None]
    found = (difference.key for other in known[1:] for difference in list_differences(known[0], other))
    values = [None if spec is None else flatten(spec) for spec in specs]
    for key in dict.fromkeys(found):
        if key not in _NAMES:
            yield key, tuple(NOT_KNOWN if each is None else each.get(key) for each in values)


def nothing_to_draw_error(compared: ComparedRuns) -> UserError:
    """The error where no run has a step, or none has a place on the wanted axis."""
    x = compared.axes.x
    if any(run.curves.by_metric for run in compared.runs):
        why = "their trainer does not report it" if x == "tokens" else "their steps have no times"
        fix = "compare them by --x step"
        return UserError(f"the {x} of these runs are not known", f"--x {x}", why, fix, ExitCode.OUT_OF_REACH)
    where = ", ".join(run.label for run in compared.runs)
    why = "curves come from metrics.jsonl, and from the events that report progress"
    fix = f"see what they did: prime-train logs {compared.runs[0].label}"
    return UserError("none of these runs has recorded a step", where, why, fix, ExitCode.OUT_OF_REACH)


# --- documents --------------------------------------------------------------------------------------


def document(compared: ComparedRuns) -> dict[str, Any]:
    """The document of `compare --json`; null is not known. A run whose config is not known has no value for a key."""
    return {
        "version": 1,
        "x": compared.axes.x,
        "smooth": compared.axes.smooth,
        "runs": [
            {
                "name": run.label,
                "path": str(run.row.path),
                "state": run.row.state,
                "last_step": run.curves.last_step,
                "wandb": run.row.wandb,
                "notes": list(_notes(compared, run)),
            }
            for run in compared.runs
        ],
        "differences": [
            {
                "key": key,
                "values": {run.label: value for run, value in zip(compared.runs, values, strict=True) if run.spec},
            }
            for key, values in compared.differences
        ],
        "groups": [
            {
                "runs": [compared.runs[run].label for run in members],
                "results": {name: _result(result) for name, result in found.items()},
            }
            for members, found in zip(compared.groups, compared.results, strict=True)
        ],
        "noise": [
            one._asdict()
            | {"difference": rounded(one.difference, _ROUNDED), "least": rounded(one.least, _ROUNDED), "against": 0}
            for one in compared.noise
        ],
        "panels": as_json(compared.panels),
    }


def _result(result: repeats.Result) -> dict[str, Any]:
    return {
        "mean": rounded(result.mean, _ROUNDED),
        "spread": rounded(result.spread, _ROUNDED),
        "runs": result.runs,
    }


def _labels(compared: ComparedRuns) -> list[str]:
    return [run.label for run in compared.runs]


def _notes(compared: ComparedRuns, run: Compared) -> Iterator[str]:
    yield from (note for note in (run.row.reason, *run.curves.notes) if note)
    is_drawn = any(line.name == run.label for panel in compared.panels for line in panel.lines)
    if run.curves.by_metric and not is_drawn:
        yield f"not drawn: its {compared.axes.x} are not known"


def as_csv(compared: ComparedRuns) -> str:
    """A line for each point in each curve."""
    lines: list[Sequence[object]] = [("run", "metric", "step", "tokens", "hours", "value", "low", "high")]
    for run in compared.runs:
        for metric, curve in run.curves.by_metric.items():
            lines += [(run.label, metric, *(None if part != part else part for part in point)) for point in curve]
    return csv_text(lines)


# --- text -------------------------------------------------------------------------------------------


def title(compared: ComparedRuns) -> str:
    """What the picture shows, and which lines are more than single steps."""
    parts = [" · ".join(_labels(compared)[:_TITLED])]
    if len(compared.runs) > _TITLED:
        parts[0] += f" and {len(compared.runs) - _TITLED} more"
    styles = {line.style for panel in compared.panels for line in panel.lines}
    if "smoothed" in styles:
        parts.append(f"bold: means in which a value counts half after {counted(compared.axes.smooth, 'step')}")
    if "mean" in styles:
        parts.append("bands: one standard deviation over the seeds")
    return "\n".join(sanitize(part) for part in parts)


def plots(compared: ComparedRuns, columns: int, paint: Paint | None) -> str:
    """A plot for each metric. `paint`: braille in colour; None: a letter for each run."""
    labels = _labels(compared)
    blocks = []
    for panel in compared.panels:
        shown = [line for line in panel.lines if line.style != "mean" and line is _best_line(panel, line.name)]
        drawn = [Drawn(_points(line), labels.index(line.name)) for line in shown]
        mean = f"; means in which a value counts half after {counted(compared.axes.smooth, 'step')}"
        is_smooth = any(line.style == "smoothed" for line in shown)
        title = f"{panel.label} over {panel.x_label}{mean if is_smooth else ''}"
        blocks.append("\n".join((title, *plot(drawn, columns, _ROWS, paint))))
    return "\n\n".join(blocks)


def _best_line(panel: Panel, name: str) -> Line:
    """The line to draw for a run where only one has room."""
    lines = [line for line in panel.lines if line.name == name and line.style != "mean"]
    return next((line for line in lines if line.style == "smoothed"), lines[0])


def _points(line: Line) -> list[tuple[float, float]]:
    """Lows and highs on a line, so that no peak is lost."""
    return [
        (x, y)
        for x, low, high in zip(line.x, line.low, line.high, strict=True)
        for y in ((low, high) if low != high else (low,))
    ]


def legend(compared: ComparedRuns, paint: Paint | None) -> list[tuple[str, str]]:
    """For each run the sign that its line has, and a text."""
    found = []
    for number, run in enumerate(compared.runs):
        sign = paint("━━", STYLES[number % len(STYLES)]) if paint else LETTERS[number]
        total = f" of {run.row.max_steps:,}" if run.row.max_steps else ""
        parts = (f"{run.row.state}, step {run.row.step or 0:,}{total}", *_notes(compared, run), run.row.wandb or "")
        found.append((sign, sanitize(f"{run.label}: {'; '.join(part for part in parts if part)}")))
    return found


def key_rows(compared: ComparedRuns) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """A row for each key that differs, with a column for each run, and their header."""
    rows = [(key, *map(value_text, values)) for key, values in compared.differences]
    return rows, ("KEY", *map(sanitize, _labels(compared)))


def result_rows(compared: ComparedRuns) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """A row for each metric and group: mean, spread over the seeds, and against the first group."""
    noise = {(one.group, one.metric): one for one in compared.noise}
    rows: list[tuple[str, ...]] = []
    for place, (members, found) in enumerate(zip(compared.groups, compared.results, strict=True)):
        name = sanitize(" + ".join(compared.runs[run].label for run in members))
        for metric, result in found.items():
            spread = NOT_KNOWN if result.spread is None else f"{result.spread:.3g}"
            against = _describe(noise[place, metric]) if (place, metric) in noise else ""
            rows.append((name, METRICS[metric], f"{result.mean:.5g}", spread, against))
    return rows, ("RUNS", "METRIC", "AT THE END", "SPREAD OF SEEDS", "AGAINST THE FIRST")


def _describe(one: repeats.Noise) -> str:
    if one.least is None:
        return f"{one.difference:+.3g}; {NOT_KNOWN} whether more than the noise: it takes two seeds for each"
    words = "more than the noise" if one.verdict == "larger" else "within the noise"
    return f"{one.difference:+.3g}, {words} of {one.least:.3g}"
