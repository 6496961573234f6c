"""Explains why a model cannot be read: a wrong name, missing access, or no answer. Pure."""

from __future__ import annotations

from prime_train.core.errors import ExitCode, UserError
from prime_train.models.model_files import Fault, Refused
from prime_train.registry.models import tested_models
from prime_train.toml.did_you_mean import nearest

# Fault -> exit code, why, fix. Missing access is a finding: the model exists, but this user may not read it.
_ERRORS = {
    Fault.BAD_NAME: (ExitCode.USAGE, "a name on the hub is name or owner/name", "{nearest}"),
    Fault.MISSING: (ExitCode.USAGE, "the hub has no model with that name, or not that revision", "{nearest}"),
    Fault.LOGIN: (
        ExitCode.FINDINGS,
        "it is private or does not exist: without a login the hub gives the same answer for both",
        "hf auth login, or {nearest}",
    ),
    Fault.BAD_TOKEN: (ExitCode.FINDINGS, "the token in HF_TOKEN or in the token file is not valid", "hf auth login"),
    Fault.GATED: (
        ExitCode.FINDINGS,
        "only users who accepted its terms have access",
        "accept them at https://huggingface.co/{model}, then hf auth login",
    ),
    Fault.FORBIDDEN: (
        ExitCode.FINDINGS,
        "the token has no permission to read it",
        "create a token with read access to gated and private repositories: https://huggingface.co/settings/tokens",
    ),
    Fault.RATE_LIMITED: (
        ExitCode.OUT_OF_REACH,
        "this machine sent too many requests",
        "wait five minutes, or hf auth login",
    ),
    Fault.SERVER: (ExitCode.OUT_OF_REACH, "the hub itself has an error", "try again; see status.huggingface.co"),
    Fault.TIMEOUT: (
        ExitCode.OUT_OF_REACH,
        "no answer arrived in time",
        "try again, or use --offline with the cached files",
    ),
    Fault.NOT_HUB: (
        ExitCode.OUT_OF_REACH,
        "a proxy or a login portal answers instead",
        "check HF_ENDPOINT and the proxy, or use --offline",
    ),
    Fault.TRUNCATED: (ExitCode.OUT_OF_REACH, "fewer bytes arrived than announced", "try again: the connection broke"),
    Fault.NOT_CACHED: (
        ExitCode.OUT_OF_REACH,
        "--offline or HF_HUB_OFFLINE forbids requests to the hub",
        "hf download {model}, then try again",
    ),
    Fault.UNREADABLE: (ExitCode.USAGE, "the folder cannot be read", "check its permissions: ls -ld"),
}
_NO_ANSWER = (ExitCode.OUT_OF_REACH, "the hub is out of reach", "check the network and HF_ENDPOINT, or use --offline")


def access_error(model: str, refused: Refused) -> UserError:
    """The error with its exit code: 1 for missing access, 2 for a wrong name, 4 for no answer."""
    code, why, fix = _ERRORS.get(refused.fault, _NO_ANSWER)
    fix = fix.replace("{model}", model).replace("{nearest}", _suggestion(model))
    return UserError(refused.detail or str(refused.fault), f"verify-model {model}", why, fix, code)


def _suggestion(model: str) -> str:
    similar = nearest(model, tested_models())
    return f"did you mean {similar}?" if similar and similar != model else "check the name: prime-train models list"
