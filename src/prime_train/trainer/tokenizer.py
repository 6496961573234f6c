"""Converts text to tokens and back: a byte-level BPE trained on the data, or any Hugging Face tokenizer folder.

Never adds a token: the code that builds sequences adds `eos_id` at the end of a document. Text that looks like a
control token ("<|endoftext|>") is encoded as plain text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.trainer.failure import first_line

EOS = "<|endoftext|>"
TRAINED_ON_CHARACTERS = 2**25  # more text does not change a vocabulary of some thousands of tokens
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "chat_template.jinja",
    "chat_template.json",
)


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """A loaded tokenizer."""

    encode_batch: Callable[[Sequence[str]], list[list[int]]]
    decode: Callable[[Sequence[int]], str]  # leaves out control tokens
    vocab_size: int  # largest token + 1
    eos_id: int
    files: tuple[Path, ...]  # to copy into the folder of an exported model
    fingerprint: str  # of the content of `files`
    control_tokens: Mapping[str, int] = field(default_factory=dict)  # text -> token; `encode_batch` makes none of them
    spelling: Callable[[int], str | None] = lambda _: None  # of a token in the vocabulary; None where it has none

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]


def read_trained(folder: Path) -> LoadedTokenizer:
    return _from_json(folder, "tokenizer (trained on the data)")


def read_folder(folder: Path) -> LoadedTokenizer:
    """The tokenizer of a Hugging Face folder. Raises UserError."""
    where = f'tokenizer.path = "{folder}"'
    if not folder.is_dir():
        why = "a Hugging Face tokenizer is a folder with tokenizer.json or the files of its model"
        fix = "set tokenizer.path to a tokenizer folder, or leave it unset to train one on the data"
        raise UserError("there is no such folder", where, why, fix)
    return _from_json(folder, where) if (folder / "tokenizer.json").is_file() else _from_transformers(folder, where)


def _from_json(folder: Path, where: str) -> LoadedTokenizer:
    import tokenizers

    try:
        loaded = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises a bare Exception for every fault of the file
        raise _unreadable(where, error) from error
    loaded.encode_special_tokens = True
    loaded.no_truncation()
    loaded.no_padding()

    def encode_batch(texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in loaded.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(tokens: Sequence[int]) -> str:
        return str(loaded.decode(list(tokens), skip_special_tokens=True))

    added = loaded.get_added_tokens_decoder()
    return LoadedTokenizer(
        encode_batch,
        decode,
        vocab_size=max(loaded.get_vocab(with_added_tokens=True).values()) + 1,
        eos_id=_eos_id(folder, loaded.token_to_id, where),
        files=_files(folder),
        fingerprint=_fingerprint(folder),
        control_tokens={token.content: number for number, token in added.items() if token.special},
        spelling=loaded.id_to_token,
    )


def _from_transformers(folder: Path, where: str) -> LoadedTokenizer:
    from transformers import AutoTokenizer

    try:
        loaded: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise _unreadable(where, error) from error
    if loaded.eos_token_id is None:
        raise _no_eos(where)

    def encode_batch(texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        encoded = loaded(list(texts), add_special_tokens=False, split_special_tokens=True, verbose=False)
        return [list(ids) for ids in encoded["input_ids"]]

    def decode(tokens: Sequence[int]) -> str:
        return str(loaded.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    vocab_size = max(loaded.get_vocab().values()) + 1
    control = dict(zip(loaded.all_special_tokens, loaded.all_special_ids, strict=True))
    eos_id, files, spelling = int(loaded.eos_token_id), _files(folder), loaded.convert_ids_to_tokens
    return LoadedTokenizer(encode_batch, decode, vocab_size, eos_id, files, _fingerprint(folder), control, spelling)


def _eos_id(folder: Path, token_to_id: Callable[[str], int | None], where: str) -> int:
    """The end-of-text token in the folder's config files, by text or by number."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = _read_json(folder / name, where).get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and (found := token_to_id(text)) is not None:
            return found
    for name in ("generation_config.json", "config.json"):
        token = _read_json(folder / name, where).get("eos_token_id")
        first = token[0] if isinstance(token, list) and token else token
        if isinstance(first, int):
            return first
    raise _no_eos(where)


def _read_json(file: Path, where: str) -> dict[str, Any]:
    try:
        value = outside.read_json(file, outside.MODEL_BYTES)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _unreadable(f"{where}: {file.name}", error) from error
    return value if isinstance(value, dict) else {}


def _files(folder: Path) -> tuple[Path, ...]:
    return tuple(folder / name for name in FILES if (folder / name).is_file())


def _fingerprint(folder: Path) -> str:
    sha256 = hashlib.sha256()
    for file in _files(folder):
        sha256.update(file.name.encode() + b"\0" + outside.read_bytes(file, outside.MODEL_BYTES))
    return sha256.hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class ControlTokens:
    """The tokens of a trained BPE that no text contains, and the ones in `words`, which also stand for themselves."""

    eos: str = EOS
    others: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


def train_bpe(texts: Iterator[str], vocab_size: int, folder: Path, control: ControlTokens = ControlTokens()) -> None:
    """Train a byte-level BPE and write it as a Hugging Face tokenizer folder. The same texts give the same file."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(control.words),
        special_tokens=[control.eos, *control.others],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    bpe.add_tokens([AddedToken(word, normalized=False) for word in control.words])
    bpe.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": control.eos,
        "pad_token": control.eos,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _unreadable(where: str, error: Exception) -> UserError:
    what = f"the tokenizer cannot be read: {first_line(error)}"
    why = "its files are incomplete, or not supported by the tokenizers and transformers libraries"
    return UserError(what, where, why, "write or download the folder again")


def _no_eos(where: str) -> UserError:
    what = "the tokenizer has no end-of-text token"
    why = "it is added to each document, so that the model learns where text ends"
    return UserError(what, where, why, 'set one of its tokens in tokenizer_config.json: "eos_token": "..."')
