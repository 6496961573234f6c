"""A progress bar of bytes on a terminal, nothing elsewhere. Decides nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def show_bytes(size_bytes: int, label: str) -> Iterator[Callable[[int], None]]:
    """Yields a function that takes the number of processed bytes. `size_bytes`: the total; 0 where it is not known."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(
        *columns, TransferSpeedColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(label, total=size_bytes or None)
        yield lambda done_bytes: bar.update(task, advance=done_bytes)
