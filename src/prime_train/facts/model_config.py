"""Finds the config.json of a model: in a file, a folder, on the hub. Counts nothing, and reads no weights.

How many parameters the weights have is told from the headers of their safetensors files alone.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.dialects.nearest import nearest
from prime_train.errors import ExitCode, UserError
from prime_train.facts.model_source import Fault, ModelFiles, Refused

_MAX_CONFIG_BYTES = 16 * 2**20  # a config.json has kilobytes; those that list every quantised module a megabyte
_FIXES = {
    Fault.BAD_NAME: "name it as owner/name",
    Fault.LOGIN: "hf auth login, or check the name: the hub says the same of what is not there",
    Fault.BAD_TOKEN: "hf auth login, with a token that holds",
    Fault.GATED: "accept its terms on the hub, or --model-config with its config.json",
    Fault.FORBIDDEN: "use a token that may read it",
    Fault.NOT_CACHED: "leave --offline out, or --model-config with its config.json",
}


class ModelConfig(NamedTuple):
    """A config.json as it was found. `loaded`: parameters by the headers of its weights, None where not known."""

    config: Mapping[str, Any]
    name: str
    where: str
    loaded: int | None = None


def config_of(name: str, where: str, known: Iterable[str], *, offline: bool = False) -> ModelConfig:
    """The config of a model by its folder or its name on the hub. `where` is what named it, `known` are names that it
    may be a misspelling of.

    Raises UserError: exit code 1 where there is no config.json, 2 where the folder is not there, 4 where the hub cannot
    be reached or does not let it be read.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return _fetched(str(path), where, known, offline=True)
    if name.startswith(("/", "./", "../", "~")) or name.count("/") > 1:
        raise UserError(
            what=f"there is no folder {name}",
            where=where,
            why="what begins with / . or ~, or has more than one /, is no name on the hub",
            fix="correct the path, or name a model on the hub as owner/name",
        )
    return _fetched(name, where, known, offline=offline)


def config_of_file(path: str) -> ModelConfig:
    """What a config.json, or a folder with one, holds. Raises UserError."""
    file = Path(path).expanduser()
    if file.is_dir():
        return config_of(path, f"--model-config {path}", (), offline=True)
    return ModelConfig(_read(file, path), Path(path).parent.name or path, path)


def _read(file: Path, where: str) -> dict[str, Any]:
    """The object in a config.json. Raises UserError with exit code 2 where it cannot be read, 1 where it is none."""
    try:
        with open(file, "rb") as opened:
            content = opened.read(_MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise UserError(
            what=f"it cannot be read: {error.strerror or error}",
            where=where,
            why="the sizes of the model stand in its config.json",
            fix="--model-config PATH/config.json",
        ) from None
    if len(content) > _MAX_CONFIG_BYTES:
        raise no_config(where, f"it has more than {_MAX_CONFIG_BYTES} bytes", "")
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise no_config(where, f"it is not JSON: {str(error)[:120]}", "") from None
    if not isinstance(values, dict):
        raise no_config(where, "it is JSON, and no object", "")
    return values


def _fetched(name: str, where: str, known: Iterable[str], *, offline: bool) -> ModelConfig:
    """The config of a model in a folder, or on the hub, whose small files a child fetches under a deadline."""
    from prime_train.facts.model_files import model_files

    with tempfile.TemporaryDirectory(prefix="prime-train-model-") as scratch:
        found = model_files(name, Path(scratch), offline=offline)
        if isinstance(found, Refused):
            raise _refused(name, where, found, known)
        unread = found.unread_of("config.json")
        if unread is not None:
            raise _refused(name, where, Refused(unread.fault, f"config.json: {unread.detail}"), known)
        if "config.json" not in found.sizes:
            raise no_config(where, f"{name} has no config.json", "")
        config = _read(found.folder / "config.json", where)
    return ModelConfig(config, name, where, _loaded(config, found))


def _loaded(config: Mapping[str, Any], files: ModelFiles) -> int | None:
    """Parameters of the weights, where their headers were read whole and hold them unpacked."""
    weights, text = files.weights, config.get("text_config")
    packed = "quantization_config" in config or (isinstance(text, dict) and "quantization_config" in text)
    return weights.stored if weights is not None and not weights.faults and not packed else None


def no_config(where: str, what: str, field: str) -> UserError:
    """The refusal of a config that tells no decoder; `field` is the key it is about, "" for the whole."""
    is_size = bool(field) and field not in ("architectures", "is_encoder_decoder", "model_type")
    return UserError(
        what=f"{field} {what}" if field else what,
        where=where,
        why="memory and time are reckoned from the sizes in the config.json of a decoder-only language model",
        fix=f"correct {field} in the config.json" if is_size else "--model-config with the config.json of such a model",
        exit_code=ExitCode.FINDINGS,
    )


def _refused(name: str, where: str, refused: Refused, known: Iterable[str]) -> UserError:
    meant = nearest(name, known)
    fix = _FIXES.get(refused.fault, "try again, or --model-config with its config.json")
    if meant is not None:
        fix = f"did you mean {meant}? Else: {fix}"
    return UserError(
        what=f"{name}: {refused.detail} ({refused.fault})",
        where=where,
        why="the registry does not know the model, so its config.json is wanted",
        fix=fix,
        exit_code=ExitCode.USAGE if refused.fault is Fault.BAD_NAME else ExitCode.OUT_OF_REACH,
    )
