"""Words the installation of prime-rl, at the commit from which the table of a generation was read. Installs nothing."""

from __future__ import annotations

import re

from prime_train.config.prime_rl.schema import load

_ADDRESS = "https://github.com/PrimeIntellect-ai/prime-rl"
_COMMIT = re.compile(r"\bprime-rl ([0-9a-f]{7,40})\b")


def list_install_lines(generation: str | None, folder: str) -> list[str]:
    """Shell lines that leave `folder`/.venv with prime-rl and the versions of its own lock file.

    `folder` is a word as a shell reads it. Without a generation, or for one that was read from no commit: its main.
    """
    commit = _COMMIT.search(load(generation).source) if generation is not None else None
    return [
        f"[ -d {folder}/.git ] || git clone --filter=blob:none {_ADDRESS} {folder}",
        f"git -C {folder} checkout --quiet {'main' if commit is None else commit[1]}",
        f"(cd {folder} && uv sync --locked --all-extras)",
    ]
