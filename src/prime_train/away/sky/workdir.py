"""Looks at the folder that a job copies to its machine. Reads names and sizes, and opens no file but .skyignore.

SkyPilot leaves out what .skyignore names; without that file, what git ignores. It copies no link that leads elsewhere.
Source: skypilot 0.14.1, data/storage_utils.py and the sync commands of data/storage.py.
"""

from __future__ import annotations

import glob
import os
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from prime_train.core import git, outside
from prime_train.core.outside import CONFIG_BYTES
from prime_train.facts.facts import NotKnown
from prime_train.facts.probe_process import run_probe

# ruff: noqa: PTH110, PTH111, PTH114, PTH117, PTH118, PTH207 - paths are texts here, because a large folder has many

IGNORE = ".skyignore"
_GIT = ".git"  # SkyPilot leaves out that of the folder itself, and copies each below it
_GIT_S = 20.0
MOST_FILES = 100_000
_LIST_IGNORED = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
_SECRET_FOLDERS = frozenset({".ssh", ".aws", ".gnupg", ".kube", _GIT})  # .git/config has the logins of its remotes
_SECRET_FILES = (
    *(".env", ".env.*", ".netrc", ".pypirc", ".npmrc", ".git-credentials"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem"),
)
_NO_SECRETS = frozenset({".env.example", ".env.sample", ".env.template", "cacert.pem"})  # certifi's certificates
_PARTS = re.compile(r"""[\s=:,;"'()\[\]{}]+""")
_EVERYWHERE = ("/bin/", "/dev/", "/proc/", "/sys/", "/usr/bin/")
_PLAIN = frozenset({"/", "/tmp"})  # each machine has them


class CopiedFolder(NamedTuple):
    """What a job copies: files, their bytes, and paths in the folder that have the name of a secret.

    Above MOST_FILES the count has ended, and each is a part. `left_out`: paths that are not copied, nor what is below.
    """

    files: int
    size_bytes: int
    secrets: tuple[str, ...]
    left_out: frozenset[str]


def measure(folder: Path) -> CopiedFolder:
    """What SkyPilot copies of a folder. A link counts as nothing, because its target is not copied."""
    left_out = list_left_out(folder)
    skipped = left_out | {_GIT}
    files = size_bytes = 0
    secrets: list[str] = []
    for place, folders, names in os.walk(folder):
        below = os.path.relpath(place, folder)
        folders[:] = [name for name in folders if _join(below, name) not in skipped]
        secrets += [f"{_join(below, name)}/" for name in folders if name in _SECRET_FOLDERS]
        for name in names:
            path = _join(below, name)
            if path in left_out or os.path.islink(os.path.join(place, name)):
                continue
            files += 1
            size_bytes += _read_size(os.path.join(place, name))
            if _is_secret(name):
                secrets.append(path)
        if files > MOST_FILES:
            break
    return CopiedFolder(files, size_bytes, tuple(sorted(secrets)), left_out)


def _join(below: str, name: str) -> str:
    return os.path.normpath(os.path.join(below, name))


def _read_size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:  # deleted meanwhile
        return 0


def _is_secret(name: str) -> bool:
    return name not in _NO_SECRETS and any(fnmatch(name, pattern) for pattern in _SECRET_FILES)


def list_left_out(folder: Path) -> frozenset[str]:
    """Paths in the folder that are not copied. Empty where that is not known, so that no secret is overlooked."""
    if (folder / IGNORE).exists():
        return frozenset(os.path.normpath(path) for path in _match_lines(folder))
    answer = run_probe(["git", "-C", str(folder), *_LIST_IGNORED], _GIT_S, environment=git.ENVIRONMENT)
    if isinstance(answer, NotKnown) or answer.code != 0:
        return frozenset()
    paths = [path for path in answer.out.split("\0") if path]
    # SkyPilot ignores git where git ignores the folder itself.
    return frozenset() if "./" in paths else frozenset(map(os.path.normpath, paths))


def _match_lines(folder: Path) -> list[str]:
    """What the lines of .skyignore match, as SkyPilot matches them: `/NAME` in the folder, `NAME` at any depth."""
    try:
        lines = outside.read_text(folder / IGNORE, CONFIG_BYTES).splitlines()
    except (OSError, ValueError):
        return []
    found: list[str] = []
    for line in filter(None, map(str.strip, lines)):
        if not line.startswith("#"):
            pattern = f".{line}" if line.startswith("/") else f"**/{line}"
            found += glob.glob(pattern, root_dir=folder, recursive=True)
    return found


def find_local_path(word: str, folder: Path) -> str:
    """The part of a word that names a place of this machine which the copy of `folder` lacks; "" if there is none.

    A word may hold a path behind =, between colons or in quotes. An absolute path counts if it exists, or if it is
    below the folder or the home folder: the machine has neither. A relative one counts if it leads out of the folder.
    """
    for part in _list_parts(word):
        path = os.path.normpath(os.path.expanduser(part))
        if os.path.isabs(path):
            is_url = part.startswith("//") and not part.startswith("///")
            if not is_url and _is_local(path, folder):
                return part
        elif os.path.exists(folder / path) and (path.startswith("../") or not is_inside(folder / path, folder)):
            return part  # the folder has another name there
    return ""


def find_left_out(word: str, folder: Path, copied: CopiedFolder) -> str:
    """The part of a word that names a path in `folder` which is not copied; "" if there is none."""
    for part in _list_parts(word):
        path = Path(os.path.normpath(part))
        if any(str(place) in copied.left_out for place in (path, *path.parents)) and os.path.exists(folder / path):
            return part
    return ""


def find_link(word: str, folder: Path) -> str:
    """The part of a word that names a link in `folder`, or a path behind one; "" if there is none."""
    for part in _list_parts(word):
        path = Path(os.path.normpath(part))
        places = (place for place in (path, *path.parents) if place.name)  # the folder itself may be a link
        if not path.is_absolute() and any(os.path.islink(folder / place) for place in places):
            return part
    return ""


def _list_parts(word: str) -> list[str]:
    """The parts of a word that may be paths."""
    return [part for part in _PARTS.split(word) if part]


def _is_local(path: str, folder: Path) -> bool:
    if path in _PLAIN or f"{path}/".startswith(_EVERYWHERE):
        return False
    return os.path.lexists(path) or Path(path).is_relative_to(folder) or Path(path).is_relative_to(Path.home())


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path leads into the folder, also behind links."""
    return path.resolve().is_relative_to(folder.resolve())
