"""Finds the config.json of a model in a file, a folder or on the hub. Reads the headers of weights, never a weight."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import OutsideError, parse_json
from prime_train.models.read.model_files import ModelFiles, ReadFault, RefusedRead
from prime_train.models.read.read_files import read_model_files
from prime_train.toml.did_you_mean import nearest

_MAX_CONFIG_BYTES = 16 * 2**20  # a config.json has kilobytes, or a megabyte if it lists every quantised module
_FIXES = {
    ReadFault.BAD_NAME: "name it as owner/name",
    ReadFault.LOGIN: "hf auth login, or check the name: the hub gives the same answer for a missing repository",
    ReadFault.BAD_TOKEN: "hf auth login, with a valid token",
    ReadFault.GATED: "accept its terms on the hub, or use --model-config with its config.json",
    ReadFault.FORBIDDEN: "use a token with read access",
    ReadFault.NOT_REGULAR: "replace it by the file itself: only regular files are read",
    ReadFault.UNREADABLE: "chmod u+r the file, or run as its owner",
    ReadFault.NOT_CACHED: "remove --offline, or use --model-config with its config.json",
}


class ModelConfig(NamedTuple):
    """A config.json. `loaded`: the parameter count from the headers of the weights, None if not known."""

    config: Mapping[str, Any]
    name: str
    where: str
    loaded: int | None = None


def find_config(name: str, where: str, known: Iterable[str], *, offline: bool = False) -> ModelConfig:
    """The config of a model by its folder or its name on the hub.

    `where` is the option or key with the name, `known` are names for a suggestion. Raises UserError: exit code 1 if
    there is no config.json, 2 if the folder does not exist, 4 if the hub is out of reach or refuses access.
    """
    with tempfile.TemporaryDirectory(prefix="prime-train-model-") as scratch:
        found = read_model_files(name, Path(scratch), where, offline=offline)
        if isinstance(found, RefusedRead):
            raise _access_error(name, where, found, known)
        unread = found.unread_of("config.json")
        if unread is not None:
            raise _access_error(name, where, RefusedRead(unread.fault, f"config.json: {unread.detail}"), known)
        if "config.json" not in found.sizes:
            raise no_config(where, f"{name} has no config.json", "")
        config = _read(found.folder / "config.json", where)
    return ModelConfig(config, name, where, _loaded(config, found))


def read_config_file(path: str) -> ModelConfig:
    """The config.json at `path`, which may be the folder around it. Raises UserError."""
    file = Path(path).expanduser()
    if file.is_dir():
        return find_config(path, f"--model-config {path}", (), offline=True)
    return ModelConfig(_read(file, path), Path(path).parent.name or path, path)


def _read(file: Path, where: str) -> dict[str, Any]:
    """The object in a config.json. Raises UserError: exit code 2 if it cannot be read, 1 if it is not a JSON object."""
    try:
        values = parse_json(outside.read_bytes(file, _MAX_CONFIG_BYTES), not_finite=True)
    except OSError as error:
        if isinstance(error, OutsideError) and error.errno == errno.EFBIG:
            raise no_config(where, str(error), "") from None
        raise UserError(
            what=f"it cannot be read: {error.strerror or error}",
            where=where,
            why="the sizes of the model are in its config.json",
            fix="--model-config PATH/config.json",
        ) from None
    except ValueError as error:
        raise no_config(where, f"it is not JSON: {str(error)[:120]}", "") from None
    if not isinstance(values, dict):
        raise no_config(where, "it is JSON, but not an object", "")
    return values


def _loaded(config: Mapping[str, Any], files: ModelFiles) -> int | None:
    """The parameter count of the weights; None if a header is missing or the weights are quantised."""
    weights, text = files.weights, config.get("text_config")
    packed = "quantization_config" in config or (isinstance(text, dict) and "quantization_config" in text)
    return weights.stored if weights is not None and not weights.faults and not packed else None


def no_config(where: str, what: str, field: str) -> UserError:
    """The error for a config that describes no decoder; `field` is the bad key, "" for the whole file."""
    is_size = bool(field) and field not in ("architectures", "is_encoder_decoder", "model_type")
    return UserError(
        what=f"{field} {what}" if field else what,
        where=where,
        why="memory and time are computed from the sizes in the config.json of a decoder-only language model",
        fix=f"correct {field} in the config.json"
        if is_size
        else "use --model-config with the config.json of such a model",
        exit_code=ExitCode.FINDINGS,
    )


def _access_error(name: str, where: str, refused: RefusedRead, known: Iterable[str]) -> UserError:
    similar = nearest(name, known)
    fix = _FIXES.get(refused.fault, "try again, or use --model-config with its config.json")
    if similar is not None:
        fix = f"did you mean {similar}? Else: {fix}"
    return UserError(
        what=f"{name}: {refused.detail} ({refused.fault})",
        where=where,
        why="the model is not in the registry, so its config.json is needed",
        fix=fix,
        exit_code=ExitCode.USAGE
        if refused.fault in (ReadFault.BAD_NAME, ReadFault.NOT_REGULAR)
        else ExitCode.OUT_OF_REACH,
    )
