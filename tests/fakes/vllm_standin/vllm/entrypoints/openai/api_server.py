"""Stands in for vLLM's server: says what FAKE_VLLM names in its log, then waits or ends as vLLM does then.

"ready" starts; "hang" says nothing and ignores SIGTERM; anything else is a fault, told and ended with.
"""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":
    said = os.environ.get("FAKE_VLLM", "ready")
    print("INFO starting with", *sys.argv[1:], file=sys.stderr, flush=True)  # noqa: T201
    if said == "ready":
        print("INFO:     Application startup complete.", file=sys.stderr, flush=True)  # noqa: T201
        signal.pause()
    if said == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pause()
    print(f"(EngineCore pid=7) ERROR 11-21 07:44:41 [core.py:1510] {said}", file=sys.stderr)  # noqa: T201
    print("RuntimeError: Engine core initialization failed. See root cause above.", file=sys.stderr)  # noqa: T201
    sys.exit(1)
