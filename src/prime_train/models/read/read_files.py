"""Reads a model's files in a child with a deadline, so a stuck mount or a silent hub blocks only the child."""

from __future__ import annotations

import json
from pathlib import Path

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.python_child import own_module
from prime_train.facts.accounts import is_hub_disabled
from prime_train.facts.facts import NotKnown
from prime_train.facts.probe_process import run_probe
from prime_train.facts.requirements import is_path
from prime_train.models.read.model_files import ModelFiles, ReadFault, RefusedRead, from_json
from prime_train.registry.models import tested_models
from prime_train.toml.did_you_mean import nearest

DEADLINE_S = 120.0  # a tokenizer of 33 MB and a hundred headers, over a slow connection
REQUEST_TIMEOUT_S = 10.0
FOLDER_DEADLINE_S = 20.0


def read_model_files(
    name: str, scratch: Path, where: str, *, revision: str = "", offline: bool = False
) -> ModelFiles | RefusedRead:
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
    command = own_module("prime_train.models.read.read_files_program")
    answer = run_probe(command, deadline_s, stdin=json.dumps(request))
    if isinstance(answer, NotKnown):
        return RefusedRead(ReadFault.TIMEOUT, answer.reason)
    try:
        output = json.loads(answer.out)
        if "refused" in output:
            return RefusedRead(ReadFault(output["refused"][0]), output["refused"][1])
        return from_json(output)
    except (ValueError, KeyError, TypeError, RecursionError):
        return RefusedRead(
            ReadFault.UNREACHABLE, answer.last_line or f"reading the files ended with exit code {answer.code}"
        )


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


# Fault -> exit code, why, fix. Missing access is a finding: the model exists, but this user may not read it.
_ERRORS = {
    ReadFault.BAD_NAME: (ExitCode.USAGE, "a name on the hub is name or owner/name", "{nearest}"),
    ReadFault.MISSING: (ExitCode.USAGE, "the hub has no model with that name, or not that revision", "{nearest}"),
    ReadFault.LOGIN: (
        ExitCode.FINDINGS,
        "it is private or does not exist: without a login the hub gives the same answer for both",
        "hf auth login, or {nearest}",
    ),
    ReadFault.BAD_TOKEN: (
        ExitCode.FINDINGS,
        "the token in HF_TOKEN or in the token file is not valid",
        "hf auth login",
    ),
    ReadFault.GATED: (
        ExitCode.FINDINGS,
        "only users who accepted its terms have access",
        "accept them at https://huggingface.co/{model}, then hf auth login",
    ),
    ReadFault.FORBIDDEN: (
        ExitCode.FINDINGS,
        "the token has no permission to read it",
        "create a token with read access to gated and private repositories: https://huggingface.co/settings/tokens",
    ),
    ReadFault.RATE_LIMITED: (
        ExitCode.OUT_OF_REACH,
        "this machine sent too many requests",
        "wait five minutes, or hf auth login",
    ),
    ReadFault.SERVER: (ExitCode.OUT_OF_REACH, "the hub itself has an error", "try again; see status.huggingface.co"),
    ReadFault.TIMEOUT: (
        ExitCode.OUT_OF_REACH,
        "no answer arrived in time",
        "try again, or use --offline with the cached files",
    ),
    ReadFault.NOT_HUB: (
        ExitCode.OUT_OF_REACH,
        "a proxy or a login portal answers instead",
        "check HF_ENDPOINT and the proxy, or use --offline",
    ),
    ReadFault.TRUNCATED: (
        ExitCode.OUT_OF_REACH,
        "fewer bytes arrived than announced",
        "try again: the connection broke",
    ),
    ReadFault.NOT_CACHED: (
        ExitCode.OUT_OF_REACH,
        "--offline or HF_HUB_OFFLINE forbids requests to the hub",
        "hf download {model}, then try again",
    ),
    ReadFault.NOT_REGULAR: (
        ExitCode.USAGE,
        "only regular files are read: a pipe or a device may never end",
        "replace it",
    ),
    ReadFault.UNREADABLE: (ExitCode.USAGE, "the folder cannot be read", "check its permissions: ls -ld"),
}
_NO_ANSWER = (ExitCode.OUT_OF_REACH, "the hub is out of reach", "check the network and HF_ENDPOINT, or use --offline")


def access_error(model: str, refused: RefusedRead) -> UserError:
    """The error with its exit code: 1 for missing access, 2 for a wrong name, 4 for no answer."""
    code, why, fix = _ERRORS.get(refused.fault, _NO_ANSWER)
    fix = fix.replace("{model}", model).replace("{nearest}", _suggestion(model))
    return UserError(refused.detail or str(refused.fault), f"verify-model {model}", why, fix, code)


def _suggestion(model: str) -> str:
    similar = nearest(model, tested_models())
    return f"did you mean {similar}?" if similar and similar != model else "check the name: prime-train models list"
