"""Finds the most similar name for a "did you mean" suggestion. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

_REMEMBERED_CHARS = 100  # of a name; no longer one is kept in memory


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The most similar candidate; None if none is close enough to suggest."""
    find = _find_nearest if len(name) <= _REMEMBERED_CHARS else _find_nearest.__wrapped__
    return find(name, tuple(candidates))


@lru_cache(maxsize=256)  # the files of a folder often have the same misspelt names
def _find_nearest(name: str, candidates: tuple[str, ...]) -> str | None:
    wanted = _plain(name)
    best: tuple[int, str] | None = None
    for least, candidate in sorted((_least_distance(wanted, _plain(each)), each) for each in candidates):
        if best is not None and best[0] < least:
            break  # no other candidate is nearer
        distance = _distance(wanted, _plain(candidate), least)
        if distance is not None and (best is None or (distance, candidate) < best):
            best = (distance, candidate)
    return best[1] if best else None


def _distance(name: str, legal: str, least: int) -> int | None:
    """The distance of two names, which is at least `least`; None if they are too different to confuse."""
    if least <= max(1, min(len(name), len(legal)) // 3):  # do not compare a key of a megabyte letter by letter
        distance = edit_distance(name, legal)
        if distance <= max(1, min(len(name), len(legal)) // 3):
            return distance
    # An abbreviation ranks after every misspelling.
    return 10 + abs(len(name) - len(legal)) if _is_abbreviation(name, legal) else None


def _least_distance(a: str, b: str) -> int:
    """A lower bound of the distance: what one name is longer, or the letters that the other has nowhere."""
    of_a, of_b = _letters(a), _letters(b)
    return max(abs(len(a) - len(b)), len(of_a - of_b), len(of_b - of_a))


@lru_cache(maxsize=4096)
def _letters(name: str) -> frozenset[str]:
    return frozenset(name)


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _is_abbreviation(name: str, other: str) -> bool:
    """`optimizer` and `optim`; `batch_size_global` and `global_batch`: the longer name has all words of the shorter."""
    shorter, longer = sorted((name, other), key=len)
    if len(shorter) < 4:
        return False
    return longer.startswith(shorter) or set(shorter.split("_")) <= set(longer.split("_"))


@lru_cache(maxsize=4096)  # of names of about equal lengths, so none of them is long
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
