"""Finds the name that was probably meant. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` is a misspelling of; None where nothing is close enough to suggest."""
    wanted = _plain(name)
    best: tuple[float, str] | None = None
    for candidate in candidates:
        legal = _plain(candidate)
        distance: float = edit_distance(wanted, legal)
        if distance > max(1, min(len(wanted), len(legal)) // 3):
            if not _is_longer_or_shorter(wanted, legal):
                continue
            distance = 10.0 + abs(len(wanted) - len(legal))  # after every misspelling
        if best is None or (distance, candidate) < best:
            best = (distance, candidate)
    return best[1] if best else None


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _is_longer_or_shorter(name: str, other: str) -> bool:
    """`optimizer` and `optim`; `batch_size_global` and `global_batch`: all words of the one are in the other."""
    shorter, longer = sorted((name, other), key=len)
    if len(shorter) < 4:
        return False
    return longer.startswith(shorter) or set(shorter.split("_")) <= set(longer.split("_"))


def edit_distance(a: str, b: str) -> int:
    """Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`.

    Optimal string alignment: Boytsov, Indexing methods for approximate dictionary searching, s. 2.2.
    """
    before: list[int] = []
    above = list(range(len(b) + 1))
    for i, left in enumerate(a, start=1):
        row = [i]
        for j, right in enumerate(b, start=1):
            cost = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (left != right))
            if i > 1 and j > 1 and left == b[j - 2] and a[i - 2] == right:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, above = above, row
    return above[-1]
