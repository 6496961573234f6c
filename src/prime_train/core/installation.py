"""How this package was installed, for messages that name a package to add."""

from __future__ import annotations

import sys
from functools import cache

_NAME = "prime-train"


def install_command(extra: str) -> str:
    """The command that adds an extra of this package to the running interpreter, in the way it was installed."""
    import shlex  # here, because a lint imports this module and names no command

    options, place, url = _source()
    wanted = f"{place}[{extra}]" + (f" @ {url}" if url else "")
    return f"{shlex.quote(sys.executable)} -m pip install {options}{shlex.quote(wanted)}"


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
    except (PackageNotFoundError, ValueError, AttributeError):
        return "", _NAME, ""
    if url.startswith("file://"):
        return "-e " if folder.get("editable") else "", unquote(urlsplit(url).path), ""
    return "", _NAME, url
