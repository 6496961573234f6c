"""Reads a model's small files and the headers of its weights from the Hugging Face hub or its local cache.

Never downloads a weight: it requests a header as a byte range, and reads nothing beyond it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.core import outside
from prime_train.core.outside import MODEL_BYTES
from prime_train.facts.accounts import classify_refusal
from prime_train.models.read import safetensors_header
from prime_train.models.read.model_files import ModelFiles, ReadFault, RefusedRead, Unread, Weights, front_matter
from prime_train.models.read.read_folder import INDEX, SINGLE, read_card, read_folder
from prime_train.models.read.safetensors_header import HeaderError, TensorHeader

SMALL_FILES = (
    *("config.json", "generation_config.json", "README.md", INDEX),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "tekken.json"),
    *("chat_template.jinja", "chat_template.json", "preprocessor_config.json", "processor_config.json"),
)
MAX_SMALL_BYTES = 100_000_000  # the tokenizer.json of a vocabulary of 262,144 has 33 MB
_FIRST_BYTES = 100_000  # holds most headers whole. Source: huggingface_hub, parse_safetensors_file_metadata
_AT_ONCE = 8
_NO_ANSWER = (ReadFault.RATE_LIMITED, ReadFault.SERVER, ReadFault.TIMEOUT, ReadFault.UNREACHABLE, ReadFault.NOT_HUB)
_CHUNK_BYTES = 65_536


class _Failed(Exception):
    """A failed request."""

    def __init__(self, fault: ReadFault, detail: str) -> None:
        super().__init__(detail)
        self.fault, self.detail = fault, detail


class _Destination(NamedTuple):
    """The source and the destination of the files."""

    name: str
    revision: str
    scratch: Path
    timeout_s: float


def read_hub(name: str, revision: str, scratch: Path, offline: bool, timeout_s: float) -> ModelFiles | RefusedRead:
    """The model's files, or why they cannot be read. Uses the cache if the hub does not answer."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented, not re-exported

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        return RefusedRead(ReadFault.BAD_NAME, str(error).partition("\n")[0])
    if offline:
        return _read_cache(name, revision) or RefusedRead(
            ReadFault.NOT_CACHED, "it is not in the cache of huggingface_hub"
        )
    try:
        return _fetch(name, revision, scratch, timeout_s)
    except _Failed as failed:
        cached = _read_cache(name, revision) if failed.fault in _NO_ANSWER else None
        if cached is None:
            return RefusedRead(failed.fault, failed.detail)
        return cached._replace(unread=(*cached.unread, Unread("", failed.fault, failed.detail)))


def _read_cache(name: str, revision: str) -> ModelFiles | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", revision=revision or None)
    if not isinstance(found, str):
        return None
    return read_folder(name, "cache", Path(found).parent, Path(found).parent.name)


def _fetch(name: str, revision: str, scratch: Path, timeout_s: float) -> ModelFiles:
    from huggingface_hub import HfApi

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    with _classify_errors():
        about = api.model_info(name, revision=revision or None, timeout=timeout_s, files_metadata=True)
    sizes = {sibling.rfilename: sibling.size or 0 for sibling in about.siblings or ()}
    place = _Destination(name, about.sha or revision or "main", scratch, timeout_s)
    wanted = [file for file in SMALL_FILES if file in sizes]
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        unread = [item for item in pool.map(lambda file: _keep(place, file, sizes[file]), wanted) if item]
        if about.gated and len(unread) == len(wanted) > 0:  # the hub shows a gated model to everyone, but not its files
            raise _Failed(unread[0].fault, unread[0].detail)
        weights = _weights(place, sizes, unread, pool.map)
    card = scratch / "README.md"
    text = read_card(card) if card.is_file() else ""
    gated = str(about.gated) if about.gated else ""
    return ModelFiles(name, "hub", scratch, about.sha or "", sizes, tuple(unread), weights, front_matter(text), gated)


def _keep(place: _Destination, file: str, size: int) -> Unread | None:
    """Puts a small file into the scratch folder; returns the reason if that fails."""
    from huggingface_hub import try_to_load_from_cache

    target = place.scratch / file
    try:
        if size > MAX_SMALL_BYTES:
            raise _Failed(ReadFault.TOO_LARGE, f"it has {size} bytes, too many for {file}")
        cached = try_to_load_from_cache(place.name, file, revision=place.revision)
        if isinstance(cached, str):
            target.symlink_to(cached)
        else:
            target.write_bytes(_get(place, file, None, MAX_SMALL_BYTES))
    except _Failed as failed:
        return Unread(file, failed.fault, failed.detail)
    return None


def _weights(
    place: _Destination, sizes: dict[str, int], unread: list[Unread], each: Callable[..., Iterator[Any]]
) -> Weights | None:
    """The summary of all headers. A file without a readable header is added to `unread`."""
    faults: list[str] = []
    named: tuple[str, ...] = ()
    index: Mapping[str, Any] | None = None
    if INDEX in sizes:
        try:
            index = outside.read_json(place.scratch / INDEX, MODEL_BYTES)
            named = safetensors_header.shards(index or {})
        except FileNotFoundError:  # it is already in `unread`
            return None
        except (ValueError, AttributeError) as error:
            index = None
            faults.append(f"{INDEX} is not valid: {error}")
    elif SINGLE in sizes:
        named = (SINGLE,)
    faults += [f"{file} is missing: the index names it" for file in named if file not in sizes]
    headers: dict[str, TensorHeader] = {}
    for file, found in each(lambda file: (file, _header(place, file)), [file for file in named if file in sizes]):
        match found:
            case Unread():
                unread.append(found)
            case str():
                faults.append(f"{file}: {found}")
            case TensorHeader():
                if found.file_bytes != sizes[file]:
                    faults.append(f"{file} has {sizes[file]} bytes, and its header describes {found.file_bytes}")
                headers[file] = found
    if index is not None:
        faults += safetensors_header.absent_tensors(index, headers)
    return safetensors_header.summarise(headers.values(), faults) if headers or faults else None


def _header(place: _Destination, file: str) -> TensorHeader | Unread | str:
    try:
        start = _get(place, file, (0, _FIRST_BYTES - 1), _FIRST_BYTES)
        size = safetensors_header.length(start)
        end = safetensors_header.LENGTH_BYTES + size
        if end > len(start):
            start = _get(place, file, (0, end - 1), end)
        if end > len(start):
            return f"the file ends within its header, after {len(start)} bytes"
        return safetensors_header.parse(start[safetensors_header.LENGTH_BYTES : end])
    except _Failed as failed:
        return Unread(file, failed.fault, failed.detail)
    except HeaderError as error:
        return str(error)


def _get(place: _Destination, file: str, span: tuple[int, int] | None, limit_bytes: int) -> bytes:
    """At most `limit_bytes` of a file, even if the server ignores the range and sends the whole file."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    url = hf_hub_url(place.name, file, revision=place.revision, endpoint=os.environ.get("HF_ENDPOINT") or None)
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if span is not None:
        headers["Range"] = f"bytes={span[0]}-{span[1]}"
    with _classify_errors(), _stream(url, headers, place.timeout_s) as (response, chunks):
        hf_raise_for_status(response)
        announced = int(response.headers.get("Content-Length") or -1)
        content = bytearray()
        for chunk in chunks:
            content += chunk
            if len(content) >= limit_bytes:
                break
        if len(content) < min(announced, limit_bytes):
            raise _Failed(ReadFault.TRUNCATED, f"{len(content)} of {announced} bytes arrived")
    return bytes(content[:limit_bytes])


@contextmanager
def _stream(url: str, headers: dict[str, str], timeout_s: float) -> Iterator[tuple[Any, Iterator[bytes]]]:
    """A response and its body in chunks, from the HTTP library that huggingface_hub uses: httpx or requests."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    session: Any = get_session()
    if callable(getattr(session, "stream", None)):
        with session.stream("GET", url, headers=headers, timeout=timeout_s) as response:
            yield response, response.iter_bytes(_CHUNK_BYTES)
    else:
        with session.get(url, headers=headers, timeout=timeout_s, stream=True) as response:
            yield response, response.iter_content(_CHUNK_BYTES)


@contextmanager
def _classify_errors() -> Iterator[None]:
    """Turns every error of a request into _Failed with a Fault."""
    from huggingface_hub.errors import HfHubHTTPError

    # The base class of the HTTP library that this version of huggingface_hub uses: requests, httpx or httpx2.
    transport: type[Exception] = HfHubHTTPError.__mro__[1]
    try:
        yield
    except HfHubHTTPError as error:
        raise _Failed(*_classify_refusal(error)) from error
    except (transport, OSError) as error:
        raise _Failed(_classify_fault(error), f"{type(error).__name__} {error}".strip()) from error
    except ValueError as error:
        raise _Failed(ReadFault.NOT_HUB, "the server that answers is not the hub") from error


def _classify_fault(error: Exception) -> ReadFault:
    names = {each.__name__ for each in type(error).__mro__}
    if names & {"TimeoutException", "Timeout", "TimeoutError"}:
        return ReadFault.TIMEOUT
    cut_short = "without sending complete" in str(error) or "IncompleteRead" in str(error)
    return ReadFault.TRUNCATED if cut_short else ReadFault.UNREACHABLE


def _classify_refusal(error: Exception) -> tuple[ReadFault, str]:
    kind, status, message = classify_refusal(error)
    detail = f"HTTP {status} {message}".strip()
    if kind:
        return ReadFault(kind), detail
    other = {408: ReadFault.TIMEOUT, 429: ReadFault.RATE_LIMITED}
    return other.get(status, ReadFault.SERVER if status >= 500 else ReadFault.UNREACHABLE), detail
