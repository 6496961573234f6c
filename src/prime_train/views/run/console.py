"""Shows a run while it is supervised: a live screen on a terminal, plain lines elsewhere. Writes to one stream only."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TextIO

from prime_train import events
from prime_train.core.units import format_seconds
from prime_train.events import Record
from prime_train.supervise.core.event_text import describe
from prime_train.supervise.core.state import State
from prime_train.views.diagnosis import attempt_lines
from prime_train.views.run.logs import ServiceLog
from prime_train.views.run.status import supervised_status
from prime_train.views.run.status_document import done_part, numbers, progress, status_document, troubles
from prime_train.views.text import fit, sanitize

if TYPE_CHECKING:
    from rich.console import RenderableType

REFRESH_S = 1.0  # one refresh takes 1 to 2 ms, and the whole supervisor may use 1 % of a core
PLAIN_EVERY_S = 10.0
PLAIN_EVERY_PART = 0.05  # of max_steps
ALARMS_SHOWN = 3

Show = Callable[[State, Sequence[Record]], None]


@contextlib.contextmanager
def open_console(stream: TextIO, service: ServiceLog | None = None) -> Iterator[Show]:
    """Yields the function that `supervise` calls in each turn to show the state on `stream`.

    `service`: the log of a server, shown line by line.
    """
    started_s = time.time()
    if stream.isatty() and os.environ.get("TERM") != "dumb":
        with _live(stream, started_s, service) as show:
            yield _stop_on_error(show)
    else:
        yield _stop_on_error(plain(lambda line: print(line, file=stream, flush=True), started_s, service))


def _stop_on_error(show: Show) -> Show:
    """A closed terminal, or a pipe without a reader, ends the output but not the run."""
    is_gone = False

    def try_show(state: State, records: Sequence[Record]) -> None:
        nonlocal is_gone
        if not is_gone:
            try:
                show(state, records)
            except OSError:
                is_gone = True

    return try_show


# --- the texts -------------------------------------------------------------------------------------


def notice(record: Record) -> str:
    """The event as one line; empty for an event that another event repeats."""
    match record.event:
        case events.CheckpointStarted() | events.CheckpointDeleted():
            return ""
        case events.TrainerFailed() | events.TrainerStopped() | events.TrainerFinished():
            return ""
        case events.Phase(name=name) if name not in ("tokenizer", "data", "export"):
            return ""
        case event:
            return sanitize(describe(event)).replace("\n", " ")


def notices(record: Record) -> list[str]:
    """The lines of an event: usually one; a failure and an alarm also have the fix."""
    match record.event:
        case events.AttemptEnded(outcome="failed") as ended:
            return attempt_lines(ended, lambda text, _: text)
        case events.AlarmRaised(answer=answer, fix=fix) if answer != "note" and fix:
            return [notice(record), f"  fix   {sanitize(fix)}".replace("\n", " ")]
        case _:
            return [words] if (words := notice(record)) else []


def style(record: Record) -> str:
    """The colour of an event: "red" for a failure, "yellow" for an alert, "green" for a finished run, else ""."""
    match record.event:
        case events.AttemptEnded(outcome="failed") | events.RunClosed(state="failed"):
            return "red"
        case events.AlarmRaised(answer="restart" | "pause" | "leave"):
            return "red"
        case events.AlarmRaised(answer="alert"):
            return "yellow"
        case events.RunClosed(state="finished"):
            return "green"
        case _:
            return ""


# --- plain lines -----------------------------------------------------------------------------------


class ProgressPace:
    """When a line of progress is due: every ten seconds, or every twentieth of the run."""

    def __init__(self) -> None:
        self._shown_s, self._shown_step = 0.0, 0

    def is_due(self, time_s: float, step: int, max_steps: int) -> bool:
        far = abs(step - self._shown_step) >= PLAIN_EVERY_PART * max_steps  # after a restart the step is smaller
        if step == self._shown_step or not (far or time_s - self._shown_s >= PLAIN_EVERY_S):
            return False
        self._shown_s, self._shown_step = time_s, step
        return True


def plain(write: Callable[[str], None], started_s: float, service: ServiceLog | None = None) -> Show:
    """A line per notable event, and a line of progress when it is due. Events before `started_s` are not shown."""
    read_lines, pace = _line_reader(started_s), ProgressPace()

    def show(state: State, records: Sequence[Record]) -> None:
        for clock, text, _ in read_lines(records):
            write(f"{clock}  {text}")
        for line in service.more(state) if service is not None else ():
            write(line)
        if state.live is None or state.live.first_progress is None or state.progress_s is None:
            return  # progress of an earlier attempt does not count
        if state.progress_s >= started_s and pace.is_due(state.progress_s, state.step, state.max_steps):
            document = status_document(supervised_status(state, state.progress_s))
            write(f"{_clock(state.progress_s)}  {progress(document, *numbers(document))}")

    return show


def _clock(time_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time_s))


def _line_reader(started_s: float) -> Callable[[Sequence[Record]], Iterator[tuple[str, str, str]]]:
    """A function that returns clock, text and colour of each line, from the first record since `started_s` on.

    A later clock change has no effect. Only the first line of a record has clock and colour.
    """
    is_present = False

    def read_lines(records: Sequence[Record]) -> Iterator[tuple[str, str, str]]:
        nonlocal is_present
        for record in records:
            is_present = is_present or record.time_s >= started_s
            for number, line in enumerate(notices(record) if is_present else ()):
                yield ("        ", line, "") if number else (_clock(record.time_s), line, style(record))

    return read_lines


# --- the live screen -------------------------------------------------------------------------------


@contextlib.contextmanager
def _live(stream: TextIO, started_s: float, service: ServiceLog | None) -> Iterator[Show]:
    """Notable events scroll; the state of the run stays below them. The supervisor's own thread draws it."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    drawn_s = 0.0
    latest = State()
    read_lines = _line_reader(started_s)
    live = Live(
        screen(latest, started_s), console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    )

    def show(state: State, records: Sequence[Record]) -> None:
        nonlocal drawn_s, latest
        latest = state
        for clock, text, color in read_lines(records):
            fitted = fit(f"{clock}  {text}", console.width).removeprefix(clock)
            console.print(Text(clock, style="dim").append(fitted, style=color or "not dim"))
        for line in service.more(state) if service is not None else ():
            console.print(Text(line, style="dim"))
        now_s = time.time()
        if now_s - drawn_s >= REFRESH_S:
            drawn_s = now_s
            live.update(screen(state, now_s), refresh=True)

    try:
        with contextlib.suppress(OSError):
            live.start()
        yield show
    finally:
        with contextlib.suppress(OSError):
            live.update(screen(latest, time.time()), refresh=True)
        with contextlib.suppress(OSError):
            live.stop()


def screen(state: State, now_s: float) -> RenderableType:
    """The state of a run in a few lines."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    document = status_document(supervised_status(state, now_s))
    bar = Table.grid(expand=True, padding=(0, 1))
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    bar.add_row(ProgressBar(total=1.0, completed=done_part(document)), progress(document))
    phase = f": {document['phase']}" if document["phase"] else ""
    title = Text(document["run"] or "run", style="bold").append(f"  {document['state']}{phase}", style="not bold cyan")
    newest, saving = document["checkpoints"]["newest_complete"], document["checkpoints"]["saving"]
    kept = (f"step {newest:,}" if newest else "none yet") + (f", saving step {saving:,}" if saving else "")
    rows: list[RenderableType] = [title, bar, Text("  ".join(numbers(document)))]
    if document["server"] is not None:
        rows[1:] = [Text("serving" if document["server"] == "ready" else "starting the server", style="not bold")]
    rows.append(Text(f"checkpoint {kept}", style="dim"))
    loud = [sanitize(alarm["what"]) for alarm in document["alarms"] if alarm["answer"] != "note"]
    rows.extend(Text(what, style="yellow", overflow="ellipsis", no_wrap=True) for what in loud[-ALARMS_SHOWN:])
    if trouble := troubles(document):
        rows.append(Text(trouble, style="yellow"))
    event, age_s = document["last_event"], document["last_event_age_s"]
    if event and age_s is not None and event != document["phase"]:  # the phase is in the title
        words = f"{sanitize(event)} ({format_seconds(age_s)} ago)"
        rows.append(Text(words, style="dim", overflow="ellipsis", no_wrap=True))
    return Group(*rows)
