"""Reads a config: its text, its format (run.toml, prime-rl, recipe or script) and its values. Judges nothing."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from prime_train.config import recipe, run_toml
from prime_train.config.foreign.values import SUFFIXES
from prime_train.config.jax import script
from prime_train.config.parsed_config import Reading
from prime_train.config.prime_rl import prime_lab
from prime_train.config.prime_rl import read as prime_rl_files
from prime_train.config.prime_rl.detect_generation import GenerationChoice
from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import CONFIG_BYTES
from prime_train.toml.did_you_mean import nearest
from prime_train.toml.document import Document, dotted, to_toml

_SCRIPT_SUFFIX = ".py"
_TOML_SUFFIX = ".toml"
_FOREIGN_TABLE = {"job", "training"}  # of torchtitan; no run.toml and no file of prime-rl has both
_RECIPE = "recipe"
_MOST_BESIDE = 1_000  # files of a folder whose names are compared with a missing one
_PRIME_RL_KEYS = ("orchestrator", "trainer_gpu_ids", "deployment")  # no run.toml has one of them


def read(text: str, path: str, prime_rl: str | None = None) -> Reading:
    """The reading of one text. `prime_rl` is the generation for a prime-rl file that names none.

    Raises UserError for a Python script that no rule can judge, and for a file of Prime Lab.
    """
    if path.endswith(_SCRIPT_SUFFIX):
        return script.read(text, path)
    if not path.endswith(_TOML_SUFFIX) and (foreign := _read_foreign(text, path)) is not None:
        return foreign
    document = Document.parse(text, path)
    if (foreign := _read_foreign_toml(document)) is not None:
        return foreign
    found, choice = _detect(document, prime_rl)
    if found in (_RECIPE, run_toml.DIALECT):
        return _read_as(found, document)
    return prime_rl_files.read((document,), prime_rl, choice)


def _read_foreign(text: str, path: str) -> Reading | None:
    """The reading of a YAML, JSON or shell text.

    None for TOML. Raises UserError for a text that is neither TOML nor of a known format.
    """
    from prime_train.config.foreign import read as foreign  # here, because a lint of TOML needs no YAML parser

    is_never_toml = path.endswith(SUFFIXES)
    if not is_never_toml and foreign.is_toml(text):
        return None
    reading = foreign.read(text, path)
    if reading is None and (is_never_toml or not foreign.is_like_toml(text)):
        raise foreign.refuse(text, path)
    return reading


def _read_foreign_toml(document: Document) -> Reading | None:
    if not document.values.keys() >= _FOREIGN_TABLE:
        return None
    from prime_train.config.foreign import read as foreign

    return foreign.read_toml(document)


def is_run_toml(document: Document) -> bool:
    """Whether `read` treats the document as a run.toml. Builds no RunSpec."""
    return not document.path.endswith(_SCRIPT_SUFFIX) and _detect(document, None)[0] == run_toml.DIALECT


def _detect(document: Document, prime_rl: str | None) -> tuple[str, GenerationChoice | None]:
    """(format, choice) of a TOML document. The choice is None, except for a prime-rl file if `prime_rl` is None.

    Raises UserError for a file of Prime Lab, unless `prime_rl` is given.
    """
    values = document.values
    if isinstance(values.get(_RECIPE), dict):
        return _RECIPE, None
    if _is_certainly_run_toml(values):
        return run_toml.DIALECT, None
    if prime_rl is not None:
        return prime_rl_files.DIALECT, None
    prime_lab.refuse(values, document.path)
    choice = prime_rl_files.choose_if_prime_rl(
        values,
        document.path,
        lambda: run_toml.count_known_keys(values),
        is_no_other=not values.keys().isdisjoint(_PRIME_RL_KEYS),
    )
    return (run_toml.DIALECT, None) if choice is None else (prime_rl_files.DIALECT, choice)


def read_merged(parts: tuple[tuple[str, str], ...], prime_rl: str | None = None) -> Reading:
    """The reading of several (text, path), merged left to right as prime-rl merges its files.

    The merged values have the format that `read` finds in such a text.

    Raises UserError if one of them is a script or has the suffix of another language.
    """
    for _, path in parts:
        if path.endswith((_SCRIPT_SUFFIX, *SUFFIXES)):
            raise UserError(
                what="only TOML files can be merged with another file",
                where=path,
                why="+ merges TOML files",
                fix=f"prime-train lint {path}",
            )
    documents = tuple(Document.parse(text, path) for text, path in parts)
    merged = prime_rl_files.merge_documents(documents)
    found, choice = _detect(merged, prime_rl)
    if found == prime_rl_files.DIALECT:
        return prime_rl_files.read(documents, prime_rl, choice)
    return _read_as(found, merged)._replace(others=documents)


def _read_as(found: str, document: Document) -> Reading:
    """The reading of a recipe or a run.toml."""
    if found == _RECIPE:
        return recipe.read_document(document)
    return run_toml.read_document(document)


def is_config(text: str, path: str) -> bool:
    """Whether a text is a config in one of the formats, even if some of its lines are not valid TOML."""
    if path.endswith(_SCRIPT_SUFFIX):
        return script.may_start_jax(text)
    if path.endswith(SUFFIXES):
        from prime_train.config.foreign.read import is_known

        return is_known(text, path)
    document = Document.parse(text, path)
    values = document.values
    if _read_foreign_toml(document) is not None:
        return True
    has_header = document.fault is not None and any(line.strip() == "[run]" for line in text.splitlines())
    if has_header or run_toml.may_be_run_toml(values) or isinstance(values.get(_RECIPE), dict):
        return True
    if prime_lab.recognise(values) is not None:
        return False
    choice = prime_rl_files.choose_if_prime_rl(values, path)
    return choice is not None and choice.known > choice.unknown


def _is_certainly_run_toml(values: Mapping[str, Any]) -> bool:
    """Whether the values are certainly a run.toml. prime-rl also has a table [run], with the keys name and dir."""
    if not values:
        return True
    run, data = values.get("run"), values.get("data")
    if any(table in values for table in _PRIME_RL_KEYS) or not isinstance(run, dict):
        return False
    has_own_keys = bool(run.keys() & {"max_steps", "kind", "seed"})
    if "inference" in values and not has_own_keys:
        return False
    return has_own_keys or (isinstance(data, dict) and bool(data.keys() & {"sources", "ctx_tokens"}))


STDIN = "-"
MERGE = "+"  # between files to merge; the later one overrules the earlier
SHOWN_STDIN = "<stdin>"
_TOO_LARGE = (f"it has more than {CONFIG_BYTES} bytes", "a config is a small TOML file")


def join_configs(configs: Sequence[str]) -> str:
    """The arguments of a command as one config for `read_config`: a file, or several with + between them.

    Raises UserError for anything else.
    """
    between = configs[1::2]
    if len(configs) % 2 == 0 or any(word != MERGE for word in between) or MERGE in configs[::2]:
        raise UserError(
            what="it takes one config, or several with a + between each two",
            where=" ".join(configs),
            why="+ merges the file on its right into the file on its left",
            fix="for example: base.toml + overlay.toml",
        )
    return " ".join(configs)


def split_config(config: str) -> list[str]:
    """The files of a joined config."""
    return [config] if os.path.lexists(config) else config.split(f" {MERGE} ")


def read_config(config: str) -> tuple[str, str]:
    """(text, path to show) of a config path, a preset's name or "-"; of files with + between them, the merged text.

    Raises UserError if one of them cannot be read, or if files to merge are not TOML.
    """
    parts = split_config(config)
    return _read_one(config) if len(parts) == 1 else (_merged_text([_read_one(part) for part in parts]), config)


def _merged_text(parts: Sequence[tuple[str, str]]) -> str:
    documents = [Document.parse(text, path) for text, path in parts]
    for document in documents:
        is_toml = not document.path.endswith((_SCRIPT_SUFFIX, *SUFFIXES))
        if document.fault is not None or not is_toml:
            raise UserError(
                what="it cannot be merged with another file: it is not a TOML file without faults",
                where=document.path,
                why=document.fault.what if document.fault is not None and is_toml else "it is in another language",
                fix=f"prime-train lint {document.path}",
            )
    return to_text(prime_rl_files.merge([document.values for document in documents]), "")


def to_text(values: Mapping[str, Any], path: str) -> str:
    """Values as a text that `read` takes: JSON for a path with a suffix of YAML, else TOML."""
    if path.endswith(SUFFIXES):
        import json  # here, because most configs are TOML

        return json.dumps(values, indent=1, default=str)
    return "\n".join(_to_lines(values, ""))


def _to_lines(table: Mapping[str, Any], header: str) -> Iterator[str]:
    """A table as TOML: its plain keys, then the tables below it. Arrays stay on one line."""
    below = {key: value for key, value in table.items() if isinstance(value, Mapping) and value}
    if header:
        yield f"[{header}]"
    for key, value in table.items():
        if key not in below:
            yield f"{dotted((key,))} = {to_toml(value)}"
    for key, value in below.items():
        yield from _to_lines(value, f"{header}.{dotted((key,))}" if header else dotted((key,)))


def _read_one(config: str) -> tuple[str, str]:
    if config == STDIN:
        content = sys.stdin.buffer.read(CONFIG_BYTES + 1)
        if len(content) > CONFIG_BYTES:
            raise _unreadable(SHOWN_STDIN, *_TOO_LARGE)
        return _decode(content, SHOWN_STDIN), SHOWN_STDIN
    path = _preset(config) or config
    return _decode(_read_bytes(path, config), path), path


def _preset(config: str) -> str | None:
    """The file of a preset; None if there is none, or a file of that name exists."""
    if os.sep in config or os.path.lexists(config):
        return None
    from prime_train.config.presets import find_preset, read_preset  # here, because most configs are paths

    found = find_preset(config)
    if found is None:
        return None
    read_preset(found)  # raises for a file of the user's that may not be read: a link, a pipe
    return str(found.path).removeprefix(f"{Path.cwd()}/")


def _read_bytes(path: str, config: str) -> bytes:
    try:
        return outside.read_bytes(path, CONFIG_BYTES)
    except FileNotFoundError:
        raise _missing(config) from None
    except IsADirectoryError:
        raise _unreadable(config, "it is a folder", "one config file is wanted") from None
    except outside.OutsideError as error:
        raise outside.as_user_error(error, config, "name a regular file; `-` reads standard input") from None
    except PermissionError as error:
        raise UserError(
            what=f"it cannot be read: {error.strerror}",
            where=config,
            why="it belongs to another user, or its mode forbids it",
            fix=f"see `ls -l {path}` and `id`; chown or chmod it, or copy it",
            exit_code=ExitCode.OUT_OF_REACH,
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise _unreadable(config, "it cannot be read", getattr(error, "strerror", None) or str(error)) from None


def _decode(content: bytes, shown: str) -> str:
    """The text of UTF-8 bytes, with or without a byte order mark. Raises UserError for other bytes."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "latin1"
        raise UserError(
            what=f"byte 0x{content[error.start]:02x} is not UTF-8",
            where=f"{shown}:{line}",
            why="a config is UTF-8 text",
            fix=f"iconv -f {encoding} -t utf-8 {shown}, or save it as UTF-8",
        ) from None


def _missing(config: str) -> UserError:
    from prime_train.config.presets import list_presets

    known = list_presets()
    beside = _nearest_beside(config)
    if beside is not None:
        why = "a file of a similar name is beside it"
        return UserError("there is no such file", where=config, why=why, fix=f"did you mean {beside}?")
    meant = nearest(config, known)
    if meant is None:
        return _unreadable(config, "there is no such file", f"nor a preset of that name; presets: {', '.join(known)}")
    return UserError("there is no such file", where=config, why="nor a preset of that name", fix=f"the preset {meant}?")


def _nearest_beside(config: str) -> str | None:
    """The path of the config with the most similar name in the same folder; None without one."""
    folder, name = os.path.split(config)
    try:
        names = [one.name for one in islice(os.scandir(folder or "."), _MOST_BESIDE)]
    except (OSError, ValueError):  # no folder, one that may not be listed, or no path
        return None
    # A name without a dot is that of a preset.
    suffixes = (_TOML_SUFFIX, _SCRIPT_SUFFIX, *SUFFIXES)
    meant = nearest(name, (one for one in names if "." in name and one.endswith(suffixes)))
    return None if meant is None else os.path.join(folder, meant)  # noqa: PTH118 - see above


def _unreadable(config: str, what: str, why: str) -> UserError:
    return UserError(what, where=config or '""', why=why, fix="give the path of a run.toml, or the name of a preset")
