"""Opens the engine of a run."""

from __future__ import annotations

from dataclasses import replace

import torch

from prime_train.core.spans import Spans
from prime_train.spec.answers import launched_server, rl_settings
from prime_train.spec.server import Server
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.build import count_served_rows
from prime_train.trainer.device import Device
from prime_train.trainer.model.decoder import ModelConfig
from prime_train.trainer.rl.engines.canary import Canary
from prime_train.trainer.rl.engines.engine import Engine
from prime_train.trainer.rl.engines.local_engine import LocalEngine
from prime_train.trainer.rl.engines.vllm_engine import VllmEngine, VllmServer
from prime_train.trainer.rl.engines.weights import Handover

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def open_engine(attempt: Attempt, config: ModelConfig, device: Device, spans: Spans | None = None) -> Engine:
    """The engine of the rollouts. It has no weights of the trainer before its first `update`. Only rank 0 opens one."""
    run, server = attempt.run, launched_server(attempt.run)
    if server is not None:
        return open_vllm(attempt, server, config, device, spans)
    return LocalEngine(
        config,
        ctx_tokens=run.data.ctx_tokens,
        slots=rl_settings(run).concurrency,
        device=device.torch,
        dtype=torch.bfloat16 if device.compute == "bf16" else torch.float32,
        spans=spans,
    )


def open_vllm(
    attempt: Attempt, server: Server, config: ModelConfig, device: Device, spans: Spans | None = None
) -> VllmEngine:
    """The engine of a server that the supervisor has started, and that was ready before the trainer started."""
    policy, ctx_tokens = rl_settings(attempt.run), server.ctx_tokens or attempt.run.data.ctx_tokens
    served = replace(config, vocab_size=count_served_rows(attempt.run, config))
    address = VllmServer(
        url=server.base_url,
        model=server.requests_name,
        ctx_tokens=ctx_tokens,
        vocab_size=config.vocab_size,
        limit_s=policy.rollout_limit_s,
        rows=served.vocab_size,
    )
    exact = server.dtype == "float32" and device.compute == "fp32"
    handover = Handover(attempt.run_dir, policy.handover, _DTYPES.get(server.dtype), config=served)
    return VllmEngine(address, handover, Canary(served, device, ctx_tokens, exact=exact), spans)
