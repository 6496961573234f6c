"""Files of tokens, and the tokenizer that wrote them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from prime_train.spec import Source
from prime_train.trainer.data.token_header import FORMATS


def write_bin(path: Path, tokens: Iterable[int], magic: int = 20240520) -> Path:
    """A file as llm.c writes it."""
    values = list(tokens)
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, FORMATS[magic].version, len(values)
    path.write_bytes(header.tobytes() + np.asarray(values, dtype=FORMATS[magic].kind).tobytes())
    return path


def write_npy(path: Path, tokens: Iterable[int], kind: str = "<u2") -> Path:
    np.save(path, np.asarray(list(tokens), dtype=kind))
    return path


def tokens_at(path: Path) -> Source:
    return Source(kind="tokens", path=str(path))
