"""Stands in for vLLM: its server answers with the trainer's own model. Faults are in DRILL_SERVER.

"": none. "keeps_old N": it reports the Nth version of the weights as loaded, and keeps the former ones, once.
"dies N": it ends in its Nth answer, once. "hangs N": its Nth answer never comes, once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any

from prime_train.trainer.model.hf import read_config
from tests.drills.marks import Marks
from tests.fakes.policy_server import PolicyServer

_DEFAULTS = {"stop_token_ids": [], "temperature": 0.0, "seed": 0}
_METRICS = b"""\
vllm:num_requests_running{engine="0"} %d
vllm:num_requests_waiting{engine="0"} 0
vllm:generation_tokens_total{engine="0"} %d
vllm:prompt_tokens_total{engine="0"} 0
vllm:num_preemptions_total{engine="0"} 0
"""


class HarmfulServer(PolicyServer):
    """A server that does as DRILL_SERVER says."""

    def __init__(self, folder: Path, ctx_tokens: int, port: int) -> None:
        super().__init__(read_config(folder), ctx_tokens, port)
        self.engine.update(self.model.state_dict(), 1)  # the weights of a start without any
        self._answered, self._running, self._loads = count(1), 0, count(1)
        self._version, self._tokens = "default", 0
        self._folder = Path(os.environ["DRILL_FOLDER"])
        self._fault, _, at = os.environ.get("DRILL_SERVER", "").partition(" ")
        self._at = int(at or 0)

    def look(self, path: str) -> tuple[int, Any]:
        match path:
            case "/metrics":
                return 200, _METRICS % (self._running, self._tokens)
            case "/weight_info":
                return 200, {"weight_version": self._version}
            case "/is_paused":
                return 200, {"is_paused": False}
        return super().look(path)

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        if path == "/update_weight_version":
            self._version = body["new_version"]
        if path == "/collective_rpc":
            self.keeps_old_weights = self._fault == "keeps_old" and next(self._loads) == self._at and self._is_first()
        if path != "/v1/completions" or "seed" not in body or "prompt_logprobs" in body:
            return super().answer(path, _DEFAULTS | body)
        number = next(self._answered)
        self._running += 1
        if number == self._at and self._fault == "dies" and self._is_first():
            Marks(self._folder).strike()
            os.kill(os.getpid(), signal.SIGKILL)
        if number == self._at and self._fault == "hangs" and self._is_first():
            Marks(self._folder).strike()
            threading.Event().wait()
        answered = super().answer(path, body)
        self._running -= 1
        self._tokens += body["max_tokens"]
        return answered

    def _is_first(self) -> bool:
        """Whether no server of this run has had the fault."""
        marker = self._folder / "server-harmed"
        try:
            marker.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def main() -> None:
    if sys.argv[1:2] != ["-m"]:
        sys.exit(f"{sys.argv[0]} only serves a model")
    options = dict(zip(sys.argv[3::1], sys.argv[4::1], strict=False))
    folder, ctx_tokens, port = Path(options["--model"]), int(options["--max-model-len"]), int(options["--port"])
    server = HarmfulServer(folder, ctx_tokens, port)
    server.key = os.environ["VLLM_API_KEY"] if options.get("--middleware") == "prime_train_key.KeyGuard" else ""
    server.serve_forever(0.05)


if __name__ == "__main__":
    main()
