"""Formats numbers with their units, for the whole package. No I/O. Bytes use binary units, counts decimal ones."""

from __future__ import annotations

GIB = 2**30


def counted(number: int, noun: str) -> str:
    """ "1 file", "2 files", "12,400 files"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_bytes(size_bytes: float) -> str:
    """ "1.5 GiB", "512 B"."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"


def format_count(count: float) -> str:
    """ "950", "4.3 M", "7.6 B"."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e4, "k")):
        if abs(count) >= limit:
            scale = 1e3 if unit == "k" else limit
            return f"{count / scale:.1f} {unit}"
    return f"{count:g}" if isinstance(count, int) or count == int(count) else f"{count:.1f}"


def format_seconds(seconds: float) -> str:
    """ "30 ms", "0.8 s", "45 s", "3 min 05 s", "2 h 10 min", "4 d 3 h"; "without end" for infinity."""
    if seconds == float("inf"):
        return "without end"
    if 0 < seconds < 0.095:
        return f"{seconds * 1000:.2g} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, second = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {second:02d} s"
    hours, minute = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minute:02d} min"
    days, hour = divmod(hours, 24)
    return f"{days} d {hour} h"


def format_usd(usd: float) -> str:
    """ "$0.26", "$12.40", "$1,240"; "beyond reach" for infinity."""
    if usd == float("inf"):
        return "beyond reach"
    return f"${usd:,.2f}" if abs(usd) < 100 else f"${usd:,.0f}"
