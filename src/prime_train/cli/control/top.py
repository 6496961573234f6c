"""`prime-train top`: a live table of all runs and devices of this folder. Reads only."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prime_train.cli.control.bus import BusCredentials, BusUrl, connect
from prime_train.cli.terminal.options import AsJson, NoColor
from prime_train.cli.terminal.render import table, terminal_columns
from prime_train.core.units import format_count, format_seconds
from prime_train.views.run.runs import RUNS

if TYPE_CHECKING:
    from rich.console import Group

    from prime_train.control.watcher import Watcher

_EVERY_S = 0.5
_KNOWN_S = 10.0  # for the keys of a bus
_HEARD_S = 2.5  # in which a machine that is alive sends two heartbeats
_POLL_S = 0.1
_READING_S = 30.0  # for the runs of a folder that are not read yet, where one table is shown
_RUNS = ("RUN", "STATE", "STEP", "LOSS", "SPEED", "LEFT", "COST", "RESTARTS", "LAST SIGN", "REMARKS")
_DEVICES = ("MACHINE", "DEVICE", "USED", "MEMORY", "TEMP", "WORKS FOR", "HEALTH")
_NUMBERS = frozenset({3, 4, 5, 6, 7})
_STYLES = {"running": "green", "finished": "blue", "recovering": "yellow", "paused": "yellow"}
_BAD = ("failed", "died", "unreadable")
Document = dict[str, Any]


def top(
    once: Annotated[bool, typer.Option("--once", help="Print the tables once and end.")] = False,
    bus: BusUrl = None,
    bus_credentials: BusCredentials = None,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Show all runs and devices of this folder, again and again.

    q or Ctrl-C ends it. Where the output is no terminal, and with --once, the tables are printed once. --json prints
    the document that the page of `control` shows, too. --bus adds the runs that a controller on that bus knows.

    Examples:

      prime-train top

      prime-train top --once --json | jq '.runs | keys'
    """
    from prime_train.control.watcher import Watcher

    joined = None if bus is None else connect(bus, bus_credentials, reads_only=True)
    watcher = Watcher(Path.cwd(), remote=joined.remote if joined else None)
    try:
        if joined is not None:
            joined.remote.start()
            joined.remote.wait_known(_KNOWN_S)
        _show_all(watcher, once=once, as_json=as_json)
    finally:
        if joined is not None:
            joined.remote.close()


def _show_all(watcher: Watcher, *, once: bool, as_json: bool) -> None:
    if as_json or once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        document = _read_all(watcher)
        if as_json:
            typer.echo(json.dumps({"version": 1, **document}, indent=1))
        elif not document["runs"]:
            typer.echo(f"no run in {Path.cwd() / RUNS}; start one with `prime-train run`", err=True)
        else:
            typer.echo(_as_text(document))
        return
    with suppress(KeyboardInterrupt):
        _show_live(watcher)


def _read_all(watcher: Watcher) -> Document:
    """The document when every run is read, or after _READING_S."""
    began_s = time.monotonic()
    while True:
        watcher.look()
        document, took_s = watcher.stream.snapshot().document, time.monotonic() - began_s
        is_silent = any(row.get("liveness") in ("unknown", "lost") for row in document["runs"].values())
        if is_silent and took_s < _HEARD_S:
            time.sleep(_POLL_S)  # a heartbeat may be on its way
        elif not document["controller"]["unread"] or took_s > _READING_S:
            return document


def _as_text(document: Document) -> str:
    columns = terminal_columns(sys.stdout)
    runs = [cells for _, cells in list_runs(document, time.time())]
    parts = [table(runs, _RUNS, _NUMBERS, columns, (9, 6, 7, 5, 8))]
    if devices := list_devices(document):
        parts.append(table(devices, _DEVICES, frozenset({2, 3, 4}), columns, ()))
    return "\n\n".join(parts)


def list_runs(document: Document, now_s: float) -> list[tuple[str, tuple[str, ...]]]:
    """The state of each run and its cells under _RUNS; those with a supervisor first, then the latest."""
    rows = sorted(
        document["runs"].items(), key=lambda item: (not item[1]["supervised"], -(item[1]["began_s"] or 0.0), item[0])
    )
    return [(row["state"], _run_cells(name, row, now_s)) for name, row in rows]


def _run_cells(name: str, row: Document, now_s: float) -> tuple[str, ...]:
    is_live, usd = row["supervised"], row["usd"]
    step = f"{row['step']:,}" + ("" if row["is_endless"] or not row["max_steps"] else f"/{row['max_steps']:,}")
    name_of_loss = "reward" if row["reward"] is not None else "loss"
    loss = row["not_finite"].get(name_of_loss) or ("" if row[name_of_loss] is None else f"{row[name_of_loss]:.4g}")
    speed = "" if row["tokens_per_s"] is None else f"{format_count(round(row['tokens_per_s']))} {row['unit']}/s"
    alarms = "; ".join(alarm["what"] for alarm in row["alarms"] if alarm["answer"] != "note")
    remarks = alarms or (row["phase"] if is_live else row["reason"]) or (row["cause"] or {}).get("what") or ""
    return (
        name,
        row["state"],
        step,
        loss,
        speed,
        format_seconds(row["left_s"]) if is_live and row["left_s"] is not None else "",
        f"${usd['low']:.2f}-{usd['high']:.2f}" if usd else "",
        str(row["restarts"] or ""),
        "" if row["last_sign_s"] is None else f"{format_seconds(max(0.0, now_s - row['last_sign_s']))} ago",
        remarks,
    )


def list_devices(document: Document) -> list[tuple[str, ...]]:
    """The cells of each device under _DEVICES."""
    return [
        _device_cells(host, device)
        for host, machine in sorted(document["machines"].items())
        for device in sorted(machine["devices"].values(), key=lambda one: one["index"])
    ]


def _device_cells(host: str, device: Document) -> tuple[str, ...]:
    used, total = device.get("used_bytes"), device.get("total_bytes")
    faults = [
        device.get("fault"),
        "left out" if device["left_out"] else "",
        device.get("stage"),
        "slow" if any(work.get("slow") for work in device["work"]) else "",
        *(f"XID {code}" for code in device["xids"]),
    ]
    faults += [name.replace("_", " ") for name in ("remap_failed", "remap_pending") if device.get(name)]
    found = [fault for fault in faults if fault]
    return (
        host,
        f"{device['kind']} {device['index']}",
        "" if device.get("utilisation_percent") is None else f"{device['utilisation_percent']} %",
        "" if used is None or not total else f"{used / total:.0%}",
        "" if device.get("temperature_c") is None else f"{device['temperature_c']} C",
        ", ".join(f"{work['run']} rank {work['rank']}" for work in device["work"]),
        ", ".join(found) or ("" if not device.get("uuid") else "no fault"),
    )


# --- the live screen --------------------------------------------------------------------------------


def _show_live(watcher: Watcher) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with _single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            watcher.look()
            live.update(_draw(watcher.stream.snapshot().document, console.height), refresh=True)
            if _is_key(_EVERY_S, b"q"):
                return


def _draw(document: Document, height: int) -> Group:
    """The tables in at most `height` lines."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    runs, devices = list_runs(document, time.time()), list_devices(document)
    unread = document["controller"]["unread"]
    live = sum(row["supervised"] for row in document["runs"].values())
    title = f"{document['controller']['folder']}: {len(runs)} runs, {live} live" + (
        f", {unread} unread" if unread else ""
    )
    room = max(4, height - 6)
    shown_devices = devices[: room // 2]
    shown = runs[: room - len(shown_devices)]
    parts: list[Text | Table] = [Text(f"{title}   (q ends)", style="bold")]
    parts.append(_grid(_RUNS, [cells for _, cells in shown], [_style(state) for state, _ in shown]))
    if shown_devices:
        parts.append(_grid(_DEVICES, shown_devices, [""] * len(shown_devices)))
    left_out = len(runs) - len(shown) + len(devices) - len(shown_devices)
    if left_out:
        parts.append(Text(f"{left_out} lines do not fit: prime-train top --once shows all", style="dim"))
    return Group(*parts)


def _grid(header: tuple[str, ...], rows: list[tuple[str, ...]], styles: list[str]) -> Any:
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="bold")
    for place, name in enumerate(header):
        is_number = header is _RUNS and place in _NUMBERS
        grid.add_column(name, no_wrap=True, overflow="ellipsis", justify="right" if is_number else "left")
    for cells, style in zip(rows, styles, strict=True):
        # Text, because a name from a run must not be read as markup.
        grid.add_row(*(Text(cell, style=style if place == 1 else "") for place, cell in enumerate(cells)))
    return grid


def _style(state: str) -> str:
    return "bold red" if state in _BAD else _STYLES.get(state, "")


@contextmanager
def _single_keys() -> Iterator[None]:
    """Keys arrive without Enter; Ctrl-C still interrupts."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin.fileno())
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _is_key(longest_s: float, key: bytes) -> bool:
    """Whether the key is pressed within `longest_s`."""
    until_s = time.monotonic() + longest_s
    while (left_s := until_s - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left_s)[0] and os.read(sys.stdin.fileno(), 1) in (key, b""):
            return True
    return False
