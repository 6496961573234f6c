"""A server beside a trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.core.errors import ExitCode
from prime_train.events import ChildStarted, RunClosed, ServiceReady
from tests.vllm.serving import START_LIMIT_S, config, started, unused_port

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


def test_a_server_beside_a_trainer_is_up_before_it_and_ends_with_it(python: str, model: Path, tmp_path: Path) -> None:
    port = unused_port()
    trains = (
        '[data]\nctx_tokens = 64\nloader_workers = 0\n[[data.sources]]\nkind = "python-stdlib"\n'
        "[model]\nlayers = 1\nhidden_size = 64\nheads = 2\n[batch]\nmicro_batch = 2\n"
        "[tokenizer]\nvocab_size = 300\n[eval]\nbatches = 1\n[checkpoint]\ninterval_steps = 4\n"
    )
    text = config(python, model, port, more=trains).replace('kind = "serve"', 'kind = "pretrain"\nmax_steps = 8')
    with started(tmp_path, text, port) as served:
        served.wait_for(ServiceReady, 1)
        assert served.supervisor.wait(START_LIMIT_S) == ExitCode.OK, served.told()
        assert [child.role for child in served.events(ChildStarted)] == ["inference", "trainer"]
        assert [closed.state for closed in served.events(RunClosed)] == ["finished"]
        assert served.processes() == []
