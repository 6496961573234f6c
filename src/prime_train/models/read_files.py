"""Reads a model's files in a child with a deadline, so a stuck mount or a silent hub blocks only the child."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from prime_train.core.errors import UserError
from prime_train.facts.facts import NotKnown
from prime_train.facts.hub import is_hub_disabled
from prime_train.facts.probe_process import run_probe
from prime_train.facts.requirements import is_path
from prime_train.models.model_files import Fault, ModelFiles, Refused, from_json

DEADLINE_S = 120.0  # a tokenizer of 33 MB and a hundred headers, over a slow connection
REQUEST_TIMEOUT_S = 10.0
FOLDER_DEADLINE_S = 20.0


def read_model_files(
    name: str, scratch: Path, where: str, *, revision: str = "", offline: bool = False
) -> ModelFiles | Refused:
    """The files of a model on the hub or in a folder; `scratch` is an empty folder for fetched files.
    `where` is the option or key with the name, for errors.

    Raises UserError if the name is the path of a missing folder.
    """
    folder = _folder(name, where)
    request = {
        "name": name,
        "folder": str(folder) if folder else "",
        "revision": revision,
        "scratch": str(scratch),
        "offline": offline or is_hub_disabled(),
        "timeout_s": REQUEST_TIMEOUT_S,
    }
    deadline_s = FOLDER_DEADLINE_S if folder or request["offline"] else DEADLINE_S
    command = [sys.executable, "-m", "prime_train.models.read_files_program"]
    answer = run_probe(command, deadline_s, stdin=json.dumps(request))
    if isinstance(answer, NotKnown):
        return Refused(Fault.TIMEOUT, answer.reason)
    try:
        output = json.loads(answer.out)
        if "refused" in output:
            return Refused(Fault(output["refused"][0]), output["refused"][1])
        return from_json(output)
    except (ValueError, KeyError, TypeError):
        return Refused(Fault.UNREACHABLE, answer.last_line or f"reading the files ended with exit code {answer.code}")


def _folder(name: str, where: str) -> Path | None:
    """The folder of the model; None if `name` is a name on the hub: `name` or `owner/name`."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.is_file():
        raise UserError(
            f"{name} is a file",
            where,
            "a model is a folder with config.json, or a name on the hub",
            f"name {path.parent}",
        )
    if is_path(name):
        raise UserError(
            f"there is no folder {name}",
            where,
            "a name that begins with / . or ~, or has more than one /, is a path",
            "check the path; a name on the hub is owner/name",
        )
    return None
