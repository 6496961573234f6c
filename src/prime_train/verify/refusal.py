"""Tells why a model could not be had: a wrong name, a right that is missing, or no answer. Pure."""

from __future__ import annotations

from prime_train.dialects.nearest import nearest
from prime_train.errors import ExitCode, UserError
from prime_train.facts.model_source import Fault, Refused
from prime_train.model_registry import tested_models

# Fault -> exit code, why, fix. A right that is missing is a finding about the model: there is one, and not for you.
_TOLD = {
    Fault.BAD_NAME: (ExitCode.USAGE, "a name on the hub is name or owner/name", "{nearest}"),
    Fault.MISSING: (ExitCode.USAGE, "the hub has no model of that name, or no such revision", "{nearest}"),
    Fault.LOGIN: (
        ExitCode.FINDINGS,
        "it is private, or it is not there: the hub says the same of both to who is not logged in",
        "hf auth login, or {nearest}",
    ),
    Fault.BAD_TOKEN: (ExitCode.FINDINGS, "the token in HF_TOKEN or in the token file does not hold", "hf auth login"),
    Fault.GATED: (
        ExitCode.FINDINGS,
        "its authors give it only to who has accepted their terms",
        "accept them at https://huggingface.co/{model}, then hf auth login",
    ),
    Fault.FORBIDDEN: (
        ExitCode.FINDINGS,
        "the token lacks the right to read it",
        "make a token that may read gated and private repositories: https://huggingface.co/settings/tokens",
    ),
    Fault.RATE_LIMITED: (
        ExitCode.OUT_OF_REACH,
        "too many requests came from here",
        "wait five minutes, or hf auth login",
    ),
    Fault.SERVER: (ExitCode.OUT_OF_REACH, "the hub itself has a fault", "try again; status.huggingface.co tells more"),
    Fault.TIMEOUT: (ExitCode.OUT_OF_REACH, "no answer came in time", "try again, or --offline with what is cached"),
    Fault.NOT_HUB: (
        ExitCode.OUT_OF_REACH,
        "a proxy or a portal answers in its place",
        "check HF_ENDPOINT and the proxy, or --offline",
    ),
    Fault.TRUNCATED: (ExitCode.OUT_OF_REACH, "fewer bytes came than were announced", "try again: the line broke"),
    Fault.NOT_CACHED: (
        ExitCode.OUT_OF_REACH,
        "--offline or HF_HUB_OFFLINE keeps us from asking the hub",
        "hf download {model}, then try again",
    ),
    Fault.UNREADABLE: (ExitCode.USAGE, "the folder cannot be read", "check its rights: ls -ld"),
}
_NO_ANSWER = (ExitCode.OUT_OF_REACH, "the hub is out of reach", "check the network and HF_ENDPOINT, or --offline")


def refusal(model: str, refused: Refused) -> UserError:
    """The error that tells it, with its exit code: 1 for a right, 2 for a name, 4 where there was no answer."""
    code, why, fix = _TOLD.get(refused.fault, _NO_ANSWER)
    told = fix.replace("{model}", model).replace("{nearest}", _nearest(model))
    return UserError(refused.detail or str(refused.fault), f"verify-model {model}", why, told, code)


def _nearest(model: str) -> str:
    meant = nearest(model, tested_models())
    return f"did you mean {meant}?" if meant and meant != model else "check the name: prime-train models list"
