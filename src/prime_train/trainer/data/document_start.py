"""Puts the end-of-text token before each document, for document_start = "eos". Pure, apart from the source it wraps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prime_train.trainer.data.token_parts import Integers, Tokens
from prime_train.trainer.data.tokenised import ALONE, Made, Share, TokenSource


@dataclass(frozen=True, slots=True)
class StartedDocuments:
    """The documents of `source`, each after the token `start`. Blank documents stay blank."""

    source: TokenSource
    start: int
    is_cut: bool  # the documents are sections of a single one, and only the first section is a start

    @property
    def made(self) -> Made:
        return self.source.made

    def make_own(self, documents: Integers, share: Share = ALONE) -> None:
        self.source.make_own(documents, share)

    def lengths(self, documents: Integers, share: Share = ALONE) -> Integers:
        lengths = self.source.lengths(documents, share)
        return lengths + (self._have_start(documents) & (lengths > 0))

    def pieces(self, documents: Integers, starts: Integers, lengths: Integers) -> list[Tokens]:
        have_start = self._have_start(documents)
        is_first = have_start & (starts == 0) & (lengths > 0)
        # The source does not have the start token, so everything behind it is one place earlier there.
        pieces = self.source.pieces(documents, starts - (have_start & (starts > 0)), lengths - is_first)
        for number in np.flatnonzero(is_first).tolist():
            pieces[number] = np.insert(pieces[number], 0, self.start)
        return pieces

    def _have_start(self, documents: Integers) -> NDArray[np.bool_]:
        return documents == 0 if self.is_cut else np.ones(len(documents), dtype=np.bool_)
