"""Draws the plots of a report with matplotlib (from the train extra). Reads no events, opens no window."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from prime_train.core.rundir import write_atomic
from prime_train.views.run.history import RunHistory
from prime_train.views.text import sanitize

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# These colours differ in grey and for colour-blind readers.
_INK, _SOFT, _HELD_OUT, _TROUBLE = "#1f4e79", "#b8cde0", "#d9822b", "#b22222"
_CAPTION_CHARS = 150  # of a line of 8 points below the plot
_LABELLED = 6  # if there are more restarts, their lines have no label


def draw(history: RunHistory, directory: Path) -> list[Path]:
    """Writes loss.png, throughput.png and, with rewards, reward.png; returns their paths, none before the first step.

    A run on clips has measured.png, too, and the trainer drew spectrograms.png. Raises ImportError without matplotlib.
    """
    if not history.metrics["step"]:
        return []
    _import_matplotlib()
    on_clips = history.state.unit == "clips"
    directory.mkdir(parents=True, exist_ok=True)
    drawn = [
        _save(_loss, history, directory / "loss.png", "loss" if on_clips else "loss, nats per token"),
        _save(_throughput, history, directory / "throughput.png", f"{history.state.unit}/s"),
    ]
    if on_clips and history.measured:
        drawn.append(_save(_measured, history, directory / "measured.png", "held-out clips"))
    if on_clips and (spectrograms := directory / "spectrograms.png").is_file():
        drawn.append(spectrograms)
    if history.task_evaluations or any(map(math.isfinite, history.metrics["reward"])):
        drawn.append(_save(_reward, history, directory / "reward.png", "mean reward"))
    return drawn


def _import_matplotlib() -> None:
    """Import matplotlib with the root as working directory.

    It obeys a `matplotlibrc` in the working directory first, which may be a folder that was downloaded. Source:
    matplotlib 3.11, matplotlib_fname.
    """
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # its name may be gone
    try:
        os.chdir("/")
        import matplotlib  # noqa: F401 - it reads its settings once
    finally:
        os.fchdir(here)
        os.close(here)


def smooth(values: Sequence[float], half_life: float) -> list[float]:
    """Exponential moving average whose weights halve every `half_life` values, without bias at the start.

    Values that are not finite are ignored. Source of the bias correction: Adam, arXiv 1412.6980, s. 3.
    """
    keep = 0.5 ** (1 / half_life)
    mean, weight = 0.0, 0.0
    result: list[float] = []
    for value in values:
        if math.isfinite(value):
            mean = keep * mean + (1 - keep) * value
            weight = keep * weight + (1 - keep)
        result.append(mean / weight if weight else math.nan)
    return result


def _save(fill: Any, history: RunHistory, path: Path, label: str) -> Path:
    """Draws one plot and replaces the file at once. Does not use pyplot, which needs global state and a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    fill(axes, history)
    captions = _mark_restarts(axes, history)
    if captions:  # below the plot, because a text inside would cover a curve
        figure.supxlabel(
            sanitize("\n".join(captions)),
            x=0.01,
            horizontalalignment="left",
            fontsize=8,
            color=_TROUBLE,
            parse_math=False,
        )
    axes.set_xlabel("optimizer step")
    axes.set_ylabel(label)
    axes.set_xlim(0, max(history.metrics["step"]) * 1.01)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e5e5e5", linewidth=0.8)
    axes.set_axisbelow(True)
    # A name or a message with a dollar is no formula.
    axes.set_title(sanitize(history.name), loc="left", fontsize=11, pad=16 if captions else None, parse_math=False)
    for label_text in axes.legend(frameon=False, fontsize=9).get_texts():
        label_text.set_parse_math(False)
    content = io.BytesIO()
    figure.savefig(content, format="png")
    write_atomic(path, content.getvalue(), is_private=False)
    return path


def _loss(axes: Axes, history: RunHistory) -> None:
    steps, losses = history.metrics["step"], history.metrics["loss"]
    axes.plot(steps, losses, color=_SOFT, linewidth=0.9, label="training, each step")
    axes.plot(steps, smooth(losses, max(2.0, len(losses) / 50)), color=_INK, linewidth=1.6, label="training, smoothed")
    if history.evaluations:
        at = [evaluated.step for evaluated in history.evaluations]
        held_out = [evaluated.loss for evaluated in history.evaluations]
        axes.plot(at, held_out, color=_HELD_OUT, marker="o", markersize=4.5, linewidth=1.4, label="held out")
        axes.annotate(
            f"{held_out[-1]:.2f}", (at[-1], held_out[-1]), xytext=(-2, -14), textcoords="offset points",
            ha="right", color=_HELD_OUT, fontweight="bold",
        )  # fmt: skip
    axes.margins(y=0.09)
    if history.vocab_loss is not None:
        axes.axhline(history.vocab_loss, color="#777777", linewidth=0.9, linestyle=(0, (4, 3)))
        words = f"{history.guess_name} = {history.vocab_loss:.2f}, a guess"
        axes.annotate(
            words, (1, history.vocab_loss), xycoords=("axes fraction", "data"), xytext=(-2, 3),
            textcoords="offset points", ha="right", fontsize=8, color="#555555",
        )  # fmt: skip


def _measured(axes: Axes, history: RunHistory) -> None:
    names = dict.fromkeys((one.name, one.metric) for one in history.measured)
    for name, colour, shape in zip(names, cycle((_INK, _HELD_OUT, _TROUBLE)), cycle("osD^v"), strict=False):
        kept = [one for one in history.measured if (one.name, one.metric) == name]
        at, values = [one.step for one in kept], [one.value for one in kept]
        axes.plot(
            at, values, color=colour, marker=shape, markersize=4.5, linewidth=1.4, label=sanitize(": ".join(name))
        )
    axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))


def _reward(axes: Axes, history: RunHistory) -> None:
    steps, rewards = history.metrics["step"], history.metrics["reward"]
    if any(map(math.isfinite, rewards)):  # warm-up steps have none
        axes.plot(steps, rewards, color=_SOFT, linewidth=0.9, label="rollouts of each step")
        axes.plot(steps, smooth(rewards, max(2.0, len(rewards) / 50)), color=_INK, linewidth=1.6, label="smoothed")
    names = dict.fromkeys(evaluated.environment for evaluated in history.task_evaluations)
    for name, shape in zip(names, cycle("osD^v"), strict=False):
        evaluations = [evaluated for evaluated in history.task_evaluations if evaluated.environment == name]
        at, held_out = [e.step for e in evaluations], [e.reward for e in evaluations]
        axes.plot(
            at,
            held_out,
            color=_HELD_OUT,
            marker=shape,
            markersize=4.5,
            linewidth=1.4,
            label=f"held out: {sanitize(name)}",
        )
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))


def _throughput(axes: Axes, history: RunHistory) -> None:
    steps, speeds = history.metrics["step"], history.metrics["tokens_per_s"]
    axes.plot(steps, speeds, color=_SOFT, linewidth=0.9, label="each step")
    axes.plot(steps, smooth(speeds, max(2.0, len(speeds) / 50)), color=_INK, linewidth=1.6, label="smoothed")
    axes.set_ylim(bottom=0)


def _mark_restarts(axes: Axes, history: RunHistory) -> list[str]:
    """A line where an attempt failed, a band over the repeated steps. Returns what the numbers of the lines mean."""
    restarts, captions = history.restarts, []
    for number, restart in enumerate(restarts):
        died, resumed = restart.failed.last_step, restart.followed.resume_step
        axes.axvspan(resumed, max(died, resumed), color=_TROUBLE, alpha=0.08, linewidth=0)
        axes.axvline(died, color=_TROUBLE, linewidth=1.1, linestyle=":", label="restart" if number == 0 else None)
        if len(restarts) <= _LABELLED:
            words = f"{number + 1}  step {died}: {restart.failed.what}, resumed from step {resumed}"
            captions.append(fill(words, _CAPTION_CHARS, subsequent_indent="    "))
            axes.annotate(
                str(number + 1), (died, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 2),
                textcoords="offset points", fontsize=8, color=_TROUBLE, ha="center", va="bottom", annotation_clip=True,
            )  # fmt: skip
    return captions
