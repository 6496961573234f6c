"""Looks whether this account is logged in to Weights & Biases. The key itself never leaves this module."""

from __future__ import annotations

import netrc
import os
from pathlib import Path
from urllib.parse import urlsplit

from prime_train.facts.facts import Login

_DEFAULT_URL = "https://api.wandb.ai"


def wandb(home: Path | None = None) -> Login:
    """Where a key was found: in the environment, else in the netrc file.

    Source: docs.wandb.ai, environment variables.
    """
    mode = os.environ.get("WANDB_MODE", "")
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or _DEFAULT_URL).hostname or ""
    if os.environ.get("WANDB_API_KEY"):
        return Login("WANDB_API_KEY", host, mode)
    problem = ""
    for path in _netrc_files(home or Path.home()):
        try:
            entry = netrc.netrc(path).authenticators(host)
        except FileNotFoundError:
            continue
        except netrc.NetrcParseError as error:
            problem = f"{path} line {error.lineno} cannot be read"  # its message may quote the key
            continue
        except (OSError, UnicodeDecodeError) as error:
            problem = f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}"
            continue
        if entry is not None and entry[2]:
            return Login(str(path), host, mode)
    return Login("", host, mode, problem)


def _netrc_files(home: Path) -> tuple[Path, ...]:
    named = os.environ.get("NETRC")
    return (Path(named),) if named else (home / ".netrc", home / "_netrc")
