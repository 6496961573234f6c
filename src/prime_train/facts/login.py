"""Finds the login for Weights & Biases. The key itself never leaves this module."""

from __future__ import annotations

import netrc
import os
from pathlib import Path
from urllib.parse import urlsplit

from prime_train.facts.facts import Login

_DEFAULT_URL = "https://api.wandb.ai"


def find_wandb_login(home: Path | None = None) -> Login:
    """The place of the key: the environment, else the netrc file.

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
            problem = f"{path} line {error.lineno} cannot be read"  # the parser's message may contain the key
            continue
        except (OSError, UnicodeDecodeError) as error:
            problem = f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}"
            continue
        if entry is not None and entry[2]:
            return Login(str(path), host, mode)
    return Login("", host, mode, problem)


def _netrc_files(home: Path) -> tuple[Path, ...]:
    named = os.environ.get("NETRC")
    return (Path(named),) if named else (home / ".netrc", home / "_netrc")
