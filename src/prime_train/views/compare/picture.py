"""Draws panels with matplotlib (from the train extra): `python -m prime_train.views.compare.picture`, a process.

It reads the panels from standard input and writes a PNG to standard output. The command line imports no
matplotlib, which takes a second and a hundred MiB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.installation import install_command
from prime_train.core.python_child import own_module
from prime_train.core.redaction import own_secrets, redact
from prime_train.views.compare.panels import Panel, as_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# These colours differ in grey and for colour-blind readers. Source: Okabe and Ito, Color Universal Design.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_DASHES = ("-", "--", ":", "-.")  # for groups beyond the colours
_LIMIT_S = 120.0
_LEGEND_LINES = 12  # more names hide the curves


def draw(panels: Sequence[Panel], title: str) -> bytes:
    """The PNG of the panels. Raises UserError where matplotlib is missing or does not draw."""
    if find_spec("matplotlib") is None:
        what, why = "matplotlib is not installed", "it draws the picture"
        raise UserError(what, "--output", why, install_command("train"), ExitCode.OUT_OF_REACH)
    document = json.dumps({"title": title, "panels": as_json(panels)})
    fix = "leave --output out: the terminal shows the curves, too"
    try:
        done = subprocess.run(
            own_module(__name__), input=document.encode(), capture_output=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        why = f"it took more than {_LIMIT_S:g} s"
        raise UserError("the picture was not drawn", "--output", why, fix, ExitCode.OUT_OF_REACH) from None
    if done.returncode != 0 or not done.stdout:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["it was killed"]
        why = redact(said[-1], own_secrets())
        raise UserError("the picture was not drawn", "--output", why, fix, ExitCode.OUT_OF_REACH)
    return done.stdout


def main() -> None:
    """Draws the document on standard input."""
    os.chdir("/")  # matplotlib obeys a file `matplotlibrc` in the working directory
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    document = json.load(sys.stdin)
    panels = document["panels"]
    figure = Figure(figsize=(9, 3.2 * len(panels) + 0.4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(len(panels), squeeze=False, sharex=True)[:, 0], panels, strict=True):
        _fill(axes, panel)
    axes.set_xlabel(panels[-1]["x_label"], fontsize=9)
    figure.suptitle(document["title"], x=0.01, ha="left", fontsize=10, parse_math=False)
    figure.savefig(sys.stdout.buffer, format="png")


def _fill(axes: Axes, panel: dict[str, Any]) -> None:
    has_smooth = {line["colour"] for line in panel["lines"] if line["style"] == "smoothed"}
    has_mean = {line["colour"] for line in panel["lines"] if line["style"] == "mean"}
    named = []
    for line in panel["lines"]:
        colour, dashes = _look(line["colour"])
        x, y, style = line["x"], line["y"], line["style"]
        # What a bold line stands for is faint behind it: steps behind their mean, runs behind the mean over seeds.
        is_behind = style == "each step" and line["colour"] in has_smooth | has_mean
        is_behind = is_behind or (style == "smoothed" and line["colour"] in has_mean)
        (drawn,) = axes.plot(
            x,
            y,
            color=colour,
            linestyle=dashes,
            linewidth=0.8 if is_behind else 1.6,
            alpha=0.35 if is_behind else 1.0,
            marker="o" if panel["metric"] == "held_out" else None,
            markersize=3.5,
        )
        if not is_behind:
            named.append((drawn, line["name"]))
        if line["low"] != line["high"]:
            axes.fill_between(x, line["low"], line["high"], color=colour, alpha=0.18, linewidth=0)
    axes.set_ylabel(panel["label"], fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e5e5", linewidth=0.8)
    axes.set_axisbelow(True)
    if panel["metric"] == "tokens_per_s":
        axes.set_ylim(bottom=0)
    if len(named) <= _LEGEND_LINES:
        legend = axes.legend(*zip(*named, strict=True), frameon=False, fontsize=8)
        for text in legend.get_texts():
            text.set_parse_math(False)  # a name with a dollar is no formula


def _look(group: int) -> tuple[str, str]:
    return _COLOURS[group % len(_COLOURS)], _DASHES[group // len(_COLOURS) % len(_DASHES)]


if __name__ == "__main__":
    main()
