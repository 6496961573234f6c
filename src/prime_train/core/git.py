"""The environment in which git runs nothing that a repository configures, because a repository may be hostile."""

from __future__ import annotations

# A missing object would be fetched by a command that the repository configures, so no transport is allowed.
# Source: git 2.45, git-config(1).
_SETTINGS = {"core.hooksPath": "/dev/null", "core.fsmonitor": "false", "protocol.allow": "never"}
ENVIRONMENT = {
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
    "GIT_CONFIG_COUNT": str(len(_SETTINGS)),
    **{f"GIT_CONFIG_KEY_{number}": key for number, key in enumerate(_SETTINGS)},
    **{f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(_SETTINGS.values())},
}
