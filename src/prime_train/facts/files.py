"""Reads facts about the local files in a config: model, tokenizer, data. Reads headers and sizes, never a corpus."""

from __future__ import annotations

import dataclasses
import glob
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.outside import MODEL_BYTES
from prime_train.facts.facts import Facts, ModelFolder, NotKnown, SourceFiles, TokenizerFolder
from prime_train.facts.find_files import EndlessSearchError, FileSearch
from prime_train.facts.requirements import is_local
from prime_train.spec import Eval, Source
from prime_train.spec.decoder_size import Architecture
from prime_train.spec.hf_config import read_architecture

SUFFIXES = {"files": (".txt", ".jsonl", ".parquet"), "tokens": (".bin", ".npy")}  # by the kind of a source
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tokenizer_config.json")
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
_WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")


def model_folder(path: str | None) -> ModelFolder | None:
    if path is None:
        return None
    folder = Path(path)
    if not folder.is_dir():
        return ModelFolder(folder, "there is no such folder")
    config = _read_json(folder / "config.json")
    if isinstance(config, str):
        return ModelFolder(folder, config)
    architecture: Architecture | None = None
    refusal = ("", "")
    try:
        architecture = read_architecture(config, str(folder))
    except UserError as error:
        refusal = (error.what, error.why)
    return ModelFolder(
        folder,
        "",
        model_type=str(config.get("model_type") or ""),
        has_weights=any((folder / name).is_file() for name in _WEIGHT_FILES),
        architecture=architecture,
        refusal=refusal,
    )


def tokenizer_folder(path: str | None) -> TokenizerFolder | None:
    if path is None:
        return None
    folder = Path(path)
    if not folder.is_dir():
        return TokenizerFolder(folder, "there is no such folder")
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return TokenizerFolder(folder, "it has no tokenizer.json and no other tokenizer file")
    has_template = _has_chat_template(folder)
    if not (folder / "tokenizer.json").is_file():
        return TokenizerFolder(folder, "", has_chat_template=has_template)
    content = _read_json(folder / "tokenizer.json")
    if isinstance(content, str):
        return TokenizerFolder(folder, content)
    return TokenizerFolder(folder, "", _vocab_size(content), has_template)


def _has_chat_template(folder: Path) -> bool | None:
    """Whether a tokenizer can render a chat, by its own file or by a key; None for an unreadable config."""
    if any((folder / name).is_file() for name in _TEMPLATE_FILES):
        return True
    if not (folder / "tokenizer_config.json").is_file():
        return False
    config = _read_json(folder / "tokenizer_config.json")
    return None if isinstance(config, str) else bool(config.get("chat_template"))


def _vocab_size(content: dict[str, Any]) -> int | None:
    model = content.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids: list[int]
    if isinstance(vocab, dict):
        ids = [number for number in vocab.values() if isinstance(number, int)]
    elif isinstance(vocab, list):  # unigram: [token, score] in the order of the ids
        ids = [len(vocab) - 1]
    else:
        return None
    added = content.get("added_tokens")
    if isinstance(added, list):
        ids += [entry["id"] for entry in added if isinstance(entry, dict) and isinstance(entry.get("id"), int)]
    return max(ids, default=-1) + 1


def _read_json(path: Path) -> dict[str, Any] | str:
    """The object in a JSON file, or a description of the fault."""
    try:
        content = outside.read_json(path, MODEL_BYTES)
    except FileNotFoundError:
        return f"it has no {path.name}"
    except OSError as error:
        return f"its {path.name} cannot be read: {error.strerror}"
    except ValueError:
        return f"its {path.name} is not JSON"
    return content if isinstance(content, dict) else f"its {path.name} is not a JSON object"


# --- data ----------------------------------------------------------------------------------------


def source_files(sources: Iterable[Source], search: FileSearch) -> tuple[SourceFiles, ...]:
    """One entry per source with local files. Sources on the hub are left out."""
    found: list[SourceFiles] = []
    for number, source in enumerate(sources):
        if source.path and source.kind in SUFFIXES:
            suffixes = SUFFIXES[source.kind]
            kind = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
            files = find_data_files(source.path, suffixes, search)
            found.append(_count_files(number, source.path, files, kind))
        elif source.path and source.kind in ("hf-dataset", "audio") and is_local(source.path):
            found.append(_count_files(number, source.path, find_data_files(source.path, None, search), "any"))
    return tuple(found)


def add_named(facts: Facts, missing: Mapping[str, str], folders: Mapping[str, str]) -> Facts:
    """The facts with the files that a config of another program names and that cannot be read.

    `missing` are not there, `folders` are those of models that are: path -> key.
    """
    if isinstance(facts.source_files, NotKnown):
        return facts
    problems = dict.fromkeys(missing, "there is no such file or folder")
    problems |= {path: folder.problem for path in folders if (folder := model_folder(path)) and folder.problem}
    keys = {**missing, **folders}
    found = (SourceFiles(0, path, 0, 0, problem, field=keys[path]) for path, problem in problems.items())
    return dataclasses.replace(facts, source_files=(*facts.source_files, *found))


def evaluation_files(settings: Eval, search: FileSearch) -> tuple[SourceFiles, ...]:
    """One entry per source of eval.sets with local files, and per file of a benchmark."""
    found = [
        one._replace(field=f"eval.sets.{number}.sources.{one.source}.path")
        for number, asked in enumerate(settings.sets)
        for one in source_files(asked.sources, search)
    ]
    paths = ((f"eval.benchmarks.{number}.path", asked.path) for number, asked in enumerate(settings.benchmarks))
    return (*found, *named_data(((field, path) for field, path in paths if path), search))


def named_data(paths: Iterable[tuple[str, str]], search: FileSearch) -> tuple[SourceFiles, ...]:
    """One entry per (RunSpec field, path) of data on this machine that is not a data source of a run.toml."""
    found = []
    for field, path in paths:
        found.append(_count_files(0, path, find_data_files(path, None, search), "any")._replace(field=field))
    return tuple(found)


def settle_unknown(found: tuple[SourceFiles, ...]) -> tuple[SourceFiles, ...] | NotKnown:
    """What was found; NotKnown where a search did not come to its end, unless another one found a fault."""
    unknown = [one for one in found if one.unknown and not one.problem]
    if not unknown or any(one.problem for one in found):
        return tuple(one for one in found if one not in unknown)
    first = unknown[0]
    at = first.field or f"data.sources.{first.source}.path"
    why = "what is behind that may be missing, or may not be readable"
    return NotKnown(f"{at} = {first.path[:200]!r}: {first.unknown}; {why}; name a folder that has the data alone")


def find_data_files(path: str, suffixes: tuple[str, ...] | None, search: FileSearch) -> Iterator[Path]:
    """The files that a file, a folder or a glob stands for, with these suffixes or any. Raises EndlessSearchError."""
    named = Path(path)
    if named.is_dir():
        candidates = search.walk(path)
    else:
        candidates = iter((path,)) if named.exists() else search.match(path)
    found = (file for file in map(Path, candidates) if suffixes is None or file.suffix in suffixes)
    for count, file in enumerate(found):
        if count == search.bounds.files:
            raise EndlessSearchError(f"{search.bounds.files:,} files")
        yield file


def _count_files(number: int, path: str, files: Iterator[Path], kind: str) -> SourceFiles:
    """Counts files and bytes. `problem` is the first file that cannot be read."""
    if not glob.has_magic(path) and not Path(path).exists():
        return SourceFiles(number, path, 0, 0, "there is no such file or folder")
    if Path(path).is_dir() and not os.access(path, os.R_OK | os.X_OK):
        return SourceFiles(number, path, 0, 0, "the folder may not be read", is_denied=True)
    count, size_bytes, problem, is_denied, unknown = 0, 0, "", False, ""
    try:
        for file in files:
            try:
                status = file.stat()
            except OSError as error:
                problem = problem or f"{file}: {error.strerror}"
                continue
            count += 1
            size_bytes += status.st_size
            if not problem and not stat.S_ISREG(status.st_mode):
                problem = f"{file} is not a regular file, and reading it may never end"
            if not problem and not os.access(file, os.R_OK):
                problem, is_denied = f"{file} may not be read", True
    except EndlessSearchError as error:
        unknown = error.what
    if not (problem or unknown):
        problem = _find_lack(Path(path), kind, count, size_bytes)
    return SourceFiles(number, path, count, size_bytes, problem, is_denied, unknown=unknown)


def _find_lack(path: Path, kind: str, count: int, size_bytes: int) -> str:
    if count == 0:
        return f"there is no {kind} file in it" if path.is_dir() else f"no {kind} file matches"
    return "" if size_bytes else f"{'the file is' if count == 1 else f'all {count} files are'} empty"
