"""Run as a program: reads one run with wandb's own client, and writes what it found as one JSON object.

python -m prime_train.away.verdict.wandb_program      standard input: {"path": "ENTITY/PROJECT/ID", "request_s": 15}

The key comes from WANDB_API_KEY or the netrc file, never from the command line.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

_SAMPLES = 200  # of a history, however long it is


def main() -> None:
    request = json.load(sys.stdin)
    os.chdir("/")  # the client takes the address that gets the key from wandb/settings in the working directory
    os.environ["WANDB_ERROR_REPORTING"] = "false"  # the client would report its own errors to its maker
    sys.stdout.write("\n" + json.dumps(read_run(str(request["path"]), int(request["request_s"]))) + "\n")


def read_run(path: str, request_s: int) -> dict[str, Any]:
    """The run's attributes, its sampled history of steps and times, and its newest system metrics; or the problem."""
    try:
        import wandb
        from wandb.errors import CommError, UsageError
    except ImportError as error:
        return {"problem": "not_installed", "detail": str(error)}
    try:
        run = wandb.Api(timeout=request_s).run(path)
        return {
            "state": run.state,
            "heartbeat": run.heartbeatAt,
            "created": run.createdAt,
            "history_step": (getattr(run, "historyKeys", None) or {}).get("lastStep"),
            "history_lines": getattr(run, "historyLineCount", None),
            "summary": _pick(run.summary_metrics),
            "config": _pick_config(run.config),
            "history": run.history(samples=_SAMPLES, keys=["_timestamp"], pandas=False)[-_SAMPLES:],
            "system": [*run.history(samples=_SAMPLES, stream="system", pandas=False)[-_SAMPLES:], run.system_metrics],
        }
    except (CommError, UsageError, ValueError, TimeoutError) as error:
        return {"problem": classify(error), "detail": " ".join(str(error).split())[:300]}


def classify(error: Exception) -> str:
    """The problem that an exception of the client stands for, by its type and its text.

    The client reports any failure of its first request as a failed login, so the text decides.
    """
    text = f"{type(error).__name__}: {error}".lower()
    return next((problem for problem, signs in _SIGNS if re.search(signs, text)), "unreadable")


# The first match counts.
_SIGNS = (
    ("rate_limited", r"\b429\b|rate limit|too many requests"),
    ("not_found", r"could not find|\b404\b|runnotfound"),
    ("no_answer", r"in time|timed out|timeout|refused|unreachable|no such host|connection reset|\b50[0234]\b"),
    ("auth", r"\b40[13]\b|api.?key|not logged in|permission|no authentication"),
)


_SUMMARY = ("_step", "_timestamp", "_runtime", "run/exit_code", "run/cause_class")


def _pick(summary: Any) -> dict[str, Any]:
    found = summary if isinstance(summary, dict) else {}
    return {name: found[name] for name in _SUMMARY if name in found}


def _pick_config(config: Any) -> dict[str, Any]:
    """`max_steps` of run.toml and of prime-rl's files."""
    found = config if isinstance(config, dict) else {}
    run = found.get("run")
    return {"max_steps": run.get("max_steps") if isinstance(run, dict) else found.get("max_steps")}


if __name__ == "__main__":
    main()
