"""How this package was installed, and where the files are that ship with it. Reads and creates none of those files.

Messages name it, and so do jobs that install it elsewhere.
"""

from __future__ import annotations

import os
import sys
from functools import cache

# ruff: noqa: PTH100, PTH111, PTH112, PTH113, PTH118, PTH120 - paths are texts here


def shipped(*names: str) -> str:
    """The path of a file or folder below `registry/`."""
    return os.path.join(_folder("registry"), *names)


def presets_folder() -> str:
    return _folder("presets")


def shipped_workflow(name: str) -> str:
    """The path of a workflow for GitHub Actions; in a checkout the project uses the file itself."""
    inside = os.path.join(_folder("workflows"), name)
    beside = os.path.join(os.path.dirname(_folder("registry")), ".github", "workflows", name)
    return inside if os.path.isfile(inside) else beside


def _folder(name: str) -> str:
    """Inside the package in a wheel; at the top of the checkout, beside src/, in an editable install."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    inside = os.path.join(package, "_shipped", name)
    return inside if os.path.isdir(inside) else os.path.join(os.path.dirname(os.path.dirname(package)), name)


def cache_path(*names: str) -> str:
    """A path below $PRIME_TRAIN_CACHE, else below $XDG_CACHE_HOME/prime-train, else below ~/.cache/prime-train."""
    folder = os.environ.get("PRIME_TRAIN_CACHE")
    if not folder:
        folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "prime-train")
    return os.path.join(os.path.abspath(folder), *names)


def config_path(*names: str) -> str:
    """A path below $XDG_CONFIG_HOME/prime-train, else below ~/.config/prime-train."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(os.path.abspath(folder), "prime-train", *names)


def data_path(*names: str) -> str:
    """A path below $XDG_DATA_HOME/prime_train, else below ~/.local/share/prime_train."""
    folder = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return os.path.join(os.path.abspath(folder), "prime_train", *names)


_NAME = "prime-train"


def install_command(extra: str) -> str:
    """The command that adds an extra of this package to the running interpreter, in the way it was installed."""
    import shlex  # here, because a lint imports this module and names no command

    options, place, url = _source()
    wanted = f"{place}[{extra}]" + (f" @ {url}" if url else "")
    return f"{shlex.quote(sys.executable)} -m pip install {options}{shlex.quote(wanted)}"


def package_url() -> str | None:
    """The https address from which another machine installs this package; None if there is none."""
    url = _source()[2]
    return url if url.removeprefix("git+").startswith("https://") else None


def is_local() -> bool:
    """Whether the package came from a folder, a file or a login of this machine, which another one does not have."""
    _, place, url = _source()
    return package_url() is None and (place != _NAME or bool(url))


@cache
def _source() -> tuple[str, str, str]:
    """Options of pip, what they install (a folder, a file or a name), and the address of a name that is on no index.

    Source: PEP 610, direct_url.json.
    """
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    try:
        origin = json.loads(distribution(_NAME).read_text("direct_url.json") or "{}")
        url, folder = str(origin.get("url", "")), origin.get("dir_info", {})
        repository = origin.get("vcs_info", {})
    except (PackageNotFoundError, ValueError, AttributeError):
        return "", _NAME, ""
    if url.startswith("file://"):
        return "-e " if folder.get("editable") else "", unquote(urlsplit(url).path), ""
    if repository:
        url = f"{repository.get('vcs')}+{url}@{repository.get('commit_id')}"
    return "", _NAME, url
