"""The watch of a run's own vLLM server, as its config asks for it."""

from __future__ import annotations

from prime_train.programs.vllm import server
from prime_train.programs.vllm.engine import EngineWatch
from prime_train.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.supervise.watches.watch import Watch


def engine_watches(run: RunSpec, run_dir: RunDir) -> tuple[Watch, ...]:
    """The engine watch; none where the run has no server, or watch.engine is off."""
    answer = run.prime_train.watch.engine
    if answer == "off" or run.server is None:
        return ()
    log = run_dir.watches / "engine.log"
    url, model = server.base_url(run.server), run.server.requests_name
    return (EngineWatch(url, server.ROLE, answer=answer, model=model, log=log),)
