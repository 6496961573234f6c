"""Counts the bytes of text that each token of a vocabulary stands for. Pure, apart from the tokenizer's vocabulary."""

from __future__ import annotations

import re

import torch

from prime_train.trainer.tokenizer import Tokenizer

# The characters by which a byte-level vocabulary spells the 256 bytes: printable Latin-1 stands for itself, the other
# 68 bytes have the characters from 256 on. Source: GPT-2 (Radford et al., 2019), bytes_to_unicode in its encoder.py.
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))
BYTE_CHARACTERS = frozenset(map(chr, (*_PRINTABLE, *range(256, 256 + 256 - len(_PRINTABLE)))))
_ONE_BYTE = re.compile("<0x[0-9A-F]{2}>")  # of a vocabulary of SentencePiece with byte fallback
_SPACE = "\u2581"  # as SentencePiece spells it


def count_token_bytes(tokenizer: Tokenizer) -> torch.Tensor:
    """Bytes of UTF-8 of each token, (V,) int64; 0 for control tokens. The tokens of a text sum up to its size.

    The first token of a text in a SentencePiece vocabulary counts a space that the text may not have.
    """
    control = {*tokenizer.control_tokens.values(), tokenizer.eos_id}
    spelled = [
        "" if token in control else tokenizer.spelling(token) or "" for token in range(tokenizer.vocab_size)
    ]  # (V,)
    if BYTE_CHARACTERS.issuperset("".join(spelled)):
        return torch.tensor([len(spelling) for spelling in spelled])
    return torch.tensor([1 if _ONE_BYTE.fullmatch(spelling) else _size(spelling) for spelling in spelled])


def _size(spelling: str) -> int:
    return len(spelling.replace(_SPACE, " ").encode())
