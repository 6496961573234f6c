"""Has a model's files read by a child with a deadline: a wedged mount or a silent hub holds the child alone."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from prime_train.errors import UserError
from prime_train.facts.child import ask
from prime_train.facts.facts import NotKnown
from prime_train.facts.model_source import Fault, ModelFiles, Refused, of_json

DEADLINE_S = 120.0  # a tokenizer of 33 MB and a hundred headers, over a slow line
REQUEST_TIMEOUT_S = 10.0
FOLDER_DEADLINE_S = 20.0


def model_files(name: str, scratch: Path, *, revision: str = "", offline: bool = False) -> ModelFiles | Refused:
    """A model of the hub or in a folder; `scratch` is an empty folder for what is fetched.

    Raises UserError where the name means a folder and there is none.
    """
    folder = _folder(name)
    asked = {
        "name": name,
        "folder": str(folder) if folder else "",
        "revision": revision,
        "scratch": str(scratch),
        "offline": offline or forced_offline(),
        "timeout_s": REQUEST_TIMEOUT_S,
    }
    deadline_s = FOLDER_DEADLINE_S if folder or asked["offline"] else DEADLINE_S
    command = [sys.executable, "-m", "prime_train.facts.model_program"]
    answer = ask(command, deadline_s, given=json.dumps(asked))
    if isinstance(answer, NotKnown):
        return Refused(Fault.TIMEOUT, answer.reason)
    try:
        said = json.loads(answer.out)
        if "refused" in said:
            return Refused(Fault(said["refused"][0]), said["refused"][1])
        return of_json(said)
    except (ValueError, KeyError, TypeError):
        return Refused(Fault.UNREACHABLE, answer.last_line or f"reading it ended with exit code {answer.code}")


def forced_offline() -> bool:
    """Whether HF_HUB_OFFLINE keeps everything from asking. Source: huggingface_hub, environment variables."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _folder(name: str) -> Path | None:
    """The folder that a name means; None for a name on the hub: `name` or `owner/name`, and no folder of that name."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    where = f"verify-model {name}"
    if path.is_file():
        raise UserError(
            "it is a file", where, "a model is a folder with config.json, or a name on the hub", f"name {path.parent}"
        )
    if name.startswith(("/", "./", "../", "~")) or name.count("/") > 1:
        raise UserError(
            "there is no such folder",
            where,
            "what begins with / . or ~, or has more than one /, is no name on the hub",
            "check the path; a name on the hub is owner/name",
        )
    return None
