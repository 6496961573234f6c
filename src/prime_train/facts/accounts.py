"""Checks on the Hugging Face hub, or offline in its local cache, whether the repositories of a run can be read.

Downloads nothing. Only huggingface_hub itself reads the token.
"""

from __future__ import annotations

import netrc
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from prime_train.facts.facts import HubAnswer, HubRepository, Login, NotKnown

if TYPE_CHECKING:
    from huggingface_hub import HfApi


TIMEOUT_S = 5.0
TOKENIZER_FILES = frozenset(("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json"))
_INVALID_TOKEN = "Invalid credentials"


def check_repositories(
    named: Iterable[tuple[str, str]], *, offline: bool, timeout_s: float = TIMEOUT_S
) -> tuple[HubRepository, ...] | NotKnown:
    """The hub's answer for each (kind, name); with `offline` the cache's. NotKnown if some are missing there."""
    wanted = sorted(set(named))
    if not wanted:
        return ()
    if offline or is_hub_disabled():
        return _check_cache(wanted)
    from huggingface_hub import HfApi

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    found: list[HubRepository] = []
    for kind, name in wanted:
        repository = _check_hub(api, kind, name, timeout_s)
        if repository.answer is HubAnswer.UNREACHABLE:  # the next request would wait as long for the same answer
            is_all_cached = all(_is_cached(kind, name) for kind, name in wanted)
            return _check_cache(wanted) if is_all_cached else NotKnown(f"the hub is out of reach: {repository.detail}")
        found.append(repository)
    return tuple(found)


def is_hub_disabled() -> bool:
    """Whether HF_HUB_OFFLINE forbids requests to the hub. Source: huggingface_hub, environment variables."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _check_cache(wanted: list[tuple[str, str]]) -> tuple[HubRepository, ...] | NotKnown:
    cached = {repository: _is_cached(*repository) for repository in wanted}
    missing = [name for (_, name), is_cached in cached.items() if not is_cached]
    if not is_hub_disabled() and missing:
        return NotKnown(f"{', '.join(missing)}: not in the local cache, and --offline forbids requests to the hub")
    return tuple(
        HubRepository(kind, name, HubAnswer.CACHED if is_cached else HubAnswer.NOT_CACHED, "", None)
        for (kind, name), is_cached in cached.items()
    )


def _is_cached(kind: str, name: str) -> bool:
    """Whether the cache has the config.json of a model, or any revision of a dataset."""
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


def _check_hub(api: HfApi, kind: str, name: str, timeout_s: float) -> HubRepository:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    # The base class of the HTTP library that this version of huggingface_hub uses: requests, httpx or httpx2.
    transport: type[Exception] = HfHubHTTPError.__mro__[1]
    try:
        read_info = api.dataset_info if kind == "dataset" else api.model_info
        about = read_info(name, timeout=timeout_s)
        files = [sibling.rfilename for sibling in about.siblings or ()]
        if about.gated and files:  # the hub shows a gated repository to everyone, but not its files
            url = hf_hub_url(name, files[0], repo_type=kind, endpoint=api.endpoint)
            get_hf_file_metadata(url, timeout=timeout_s, endpoint=api.endpoint)
    except HfHubHTTPError as error:
        return HubRepository(kind, name, *_answer(error), None)
    except HFValidationError as error:
        return HubRepository(kind, name, HubAnswer.MISSING, str(error).partition("\n")[0], None)
    except (transport, OSError) as error:
        return HubRepository(kind, name, HubAnswer.UNREACHABLE, f"{type(error).__name__} {error}".strip(), None)
    except ValueError:
        return HubRepository(kind, name, HubAnswer.UNREACHABLE, "the server that answers is not the hub", None)
    return HubRepository(kind, name, HubAnswer.OPEN, "", not TOKENIZER_FILES.isdisjoint(files))


def _answer(error: Exception) -> tuple[HubAnswer, str]:
    kind, status, message = classify_refusal(error)
    return (HubAnswer(kind), message) if kind else (HubAnswer.UNREACHABLE, f"HTTP {status} {message}".strip())


def classify_refusal(error: Exception) -> tuple[str, int, str]:
    """(kind, HTTP status, the hub's message). The kind is a value of HubAnswer, "" for any other status.

    Without a login the hub answers 401 for a missing repository too.
    """
    from huggingface_hub.errors import GatedRepoError

    response = getattr(error, "response", None)
    status = getattr(response, "status_code", 0)
    message = getattr(response, "headers", {}).get("x-error-message", "")
    if isinstance(error, GatedRepoError):
        return "gated", status, message
    if status == 401:
        return ("bad-token" if _INVALID_TOKEN in message else "login"), status, message
    return {403: "forbidden", 404: "missing"}.get(status, ""), status, message


_DEFAULT_URL = "https://api.wandb.ai"


def find_wandb_login(home: Path | None = None) -> Login:
    """The place of the key: the environment, else the netrc file.

    Source: docs.wandb.ai, environment variables.
    """
    mode = os.environ.get("WANDB_MODE", "")
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or _DEFAULT_URL).hostname or ""
    if os.environ.get("WANDB_API_KEY"):
        return Login("WANDB_API_KEY", host, mode)
    problem, home, named = "", home or Path.home(), os.environ.get("NETRC")
    for path in (Path(named),) if named else (home / ".netrc", home / "_netrc"):
        try:
            entry = netrc.netrc(path).authenticators(host)
        except FileNotFoundError:
            continue
        except netrc.NetrcParseError as error:
            problem = f"{path} line {error.lineno} cannot be read"  # the parser's message may contain the key
            continue
        except (OSError, UnicodeDecodeError) as error:
            problem = f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}"
            continue
        if entry is not None and entry[2]:
            return Login(str(path), host, mode)
    return Login("", host, mode, problem)
