"""Asks the Hugging Face hub whether the repositories of a run can be read, and the local cache where it may not ask.

Downloads nothing. The token is huggingface_hub's own affair: it is never read here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from prime_train.facts.facts import HubAnswer, HubRepository, NotKnown

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TIMEOUT_S = 5.0
_TOKENIZER_FILES = frozenset(("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json"))
_INVALID_TOKEN = "Invalid credentials"


def repositories(
    asked: Iterable[tuple[str, str]], *, offline: bool, timeout_s: float = TIMEOUT_S
) -> tuple[HubRepository, ...] | NotKnown:
    """What the hub says of each (kind, name); `offline` asks the cache alone, and leaves what is not there unknown."""
    wanted = sorted(set(asked))
    if not wanted:
        return ()
    if offline or _forced_offline():
        return _in_cache(wanted)
    from huggingface_hub import HfApi

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    found: list[HubRepository] = []
    for kind, name in wanted:
        repository = _ask(api, kind, name, timeout_s)
        if repository.answer is HubAnswer.UNREACHABLE:  # the next would wait as long, for the same answer
            return (
                _in_cache(wanted) if _all_cached(wanted) else NotKnown(f"the hub is out of reach: {repository.detail}")
            )
        found.append(repository)
    return tuple(found)


def _forced_offline() -> bool:
    """Whether the run itself will not ask: HF_HUB_OFFLINE. Source: huggingface_hub, environment variables."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _in_cache(wanted: list[tuple[str, str]]) -> tuple[HubRepository, ...] | NotKnown:
    cached = {asked: _cached(*asked) for asked in wanted}
    missing = [name for (_, name), there in cached.items() if not there]
    if not _forced_offline() and missing:
        return NotKnown(f"{', '.join(missing)}: not in the local cache, and offline the hub is not asked")
    return tuple(
        HubRepository(kind, name, HubAnswer.CACHED if there else HubAnswer.NOT_CACHED, "", None)
        for (kind, name), there in cached.items()
    )


def _all_cached(wanted: list[tuple[str, str]]) -> bool:
    return all(_cached(kind, name) for kind, name in wanted)


def _cached(kind: str, name: str) -> bool:
    """Whether the cache holds a model's config.json, or any revision of a data set."""
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.file_download import repo_folder_name

    if kind == "dataset":
        revisions = Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=name, repo_type=kind), "snapshots")
        return any(revisions.iterdir()) if revisions.is_dir() else False
    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except HFValidationError:
        return False


def _ask(api: HfApi, kind: str, name: str, timeout_s: float) -> HubRepository:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    # Of whichever HTTP library this version of huggingface_hub stands on: requests, httpx or httpx2.
    transport: type[Exception] = HfHubHTTPError.__mro__[1]
    try:
        look = api.dataset_info if kind == "dataset" else api.model_info
        about = look(name, timeout=timeout_s)
        files = [sibling.rfilename for sibling in about.siblings or ()]
        if about.gated and files:  # the hub tells of a gated repository to everyone; its files it gives to few
            url = hf_hub_url(name, files[0], repo_type=kind, endpoint=api.endpoint)
            get_hf_file_metadata(url, timeout=timeout_s, endpoint=api.endpoint)
    except HfHubHTTPError as error:
        return HubRepository(kind, name, *_refusal(error), None)
    except HFValidationError as error:
        return HubRepository(kind, name, HubAnswer.MISSING, str(error).partition("\n")[0], None)
    except (transport, OSError) as error:
        return HubRepository(kind, name, HubAnswer.UNREACHABLE, f"{type(error).__name__} {error}".strip(), None)
    except ValueError:
        return HubRepository(kind, name, HubAnswer.UNREACHABLE, "what answers there is not the hub", None)
    return HubRepository(kind, name, HubAnswer.OPEN, "", not _TOKENIZER_FILES.isdisjoint(files))


def _refusal(error: Exception) -> tuple[HubAnswer, str]:
    """What a refusal means. The hub says 401 of a repository that is not there too, where nobody is logged in."""
    from huggingface_hub.errors import GatedRepoError

    response = getattr(error, "response", None)
    status = getattr(response, "status_code", 0)
    message = getattr(response, "headers", {}).get("x-error-message", "")
    if isinstance(error, GatedRepoError):
        return HubAnswer.GATED, message
    if status == 401:
        return (HubAnswer.BAD_TOKEN if _INVALID_TOKEN in message else HubAnswer.LOGIN), message
    if status == 403:
        return HubAnswer.FORBIDDEN, message
    if status == 404:
        return HubAnswer.MISSING, message
    return HubAnswer.UNREACHABLE, f"HTTP {status} {message}".strip()
