"""Permutes the documents of an epoch without a table, so its memory does not grow with their number. Pure.

A place is a pair of numbers, one below `columns` and one below `rows`. Each round moves one of the two by a hash of the
other, which can be undone, so the rounds are a permutation of all pairs. There are a few more pairs than places: a
place that leaves the range goes through the rounds again until it is back. Source: Black and Rogaway, Ciphers with
Arbitrary Finite Domains, CT-RSA 2002, s. 4 (cycle walking) and s. 5 (generalised Feistel network).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# Four make a large range look random (Luby and Rackoff, SIAM J. Comput. 17(2), 1988). A range of a few numbers needs
# more: with 16 all 120 permutations of 5 documents are equally likely (chi-square, 12,000 keys), with 12 they are not.
ROUNDS = 16

Integers = NDArray[np.int64]
Hashes = NDArray[np.uint64]


def permute(places: Integers, count: int, keys: Hashes) -> Integers:
    """Where a permutation of 0..count-1 takes the places. `keys`: ROUNDS random numbers, one for each round."""
    columns = math.isqrt(count - 1) + 1 if count else 1
    rows = -(-count // columns)
    found = _shuffle(places.astype(np.uint64), columns, rows, keys)
    while len(outside := np.flatnonzero(found >= count)):
        found[outside] = _shuffle(found[outside], columns, rows, keys)
    return found.astype(np.int64)


def _shuffle(values: Hashes, columns: int, rows: int, keys: Hashes) -> Hashes:
    """A permutation of 0..columns * rows - 1."""
    left, right = np.divmod(values, np.uint64(rows))  # below columns, below rows
    for number, key in enumerate(keys):
        if number % 2:
            right = (right + _mix(left + key)) % np.uint64(rows)
        else:
            left = (left + _mix(right + key)) % np.uint64(columns)
    return left * np.uint64(rows) + right


def _mix(values: Hashes) -> Hashes:
    """A hash of 62 bits of each value. Source: the finaliser of SplitMix64, Steele, Lea and Flood, OOPSLA 2014."""
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(2)  # so that the sum with a value has 64 bits
