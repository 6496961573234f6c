"""Opens the engine of a run."""

from __future__ import annotations

import torch

from prime_train.core.spans import Spans
from prime_train.spec.server import Server
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.device import Device
from prime_train.trainer.model import ModelConfig
from prime_train.trainer.rl.canary import Canary
from prime_train.trainer.rl.engine import Engine
from prime_train.trainer.rl.local_engine import LocalEngine
from prime_train.trainer.rl.vllm_engine import VllmEngine, VllmServer
from prime_train.trainer.rl.weights import Handover

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def open_engine(attempt: Attempt, config: ModelConfig, device: Device, spans: Spans | None = None) -> Engine:
    """The engine of the rollouts; the local one for the evaluation of a run without rollouts.

    It has no weights of the trainer before its first `update`. Only rank 0 opens one.
    """
    run, server = attempt.run, attempt.run.launched_server
    if run.rollout_engine == "vllm" and server is not None:
        return _open_vllm(attempt, server, config, device, spans)
    return LocalEngine(
        config,
        ctx_tokens=run.data.ctx_tokens,
        slots=run.policy.concurrency,
        device=device.torch,
        dtype=torch.bfloat16 if device.compute == "bf16" else torch.float32,
        spans=spans,
    )


def _open_vllm(
    attempt: Attempt, server: Server, config: ModelConfig, device: Device, spans: Spans | None
) -> VllmEngine:
    """The supervisor has started the server, and it was ready before the trainer started."""
    policy, ctx_tokens = attempt.run.policy, server.ctx_tokens or attempt.run.data.ctx_tokens
    address = VllmServer(
        url=server.base_url,
        model=server.requests_name,
        ctx_tokens=ctx_tokens,
        vocab_size=config.vocab_size,
        limit_s=policy.rollout_limit_s,
    )
    exact = server.dtype == "float32" and device.compute == "fp32"
    handover = Handover(attempt.run_dir, policy.handover, _DTYPES.get(server.dtype), config=config)
    return VllmEngine(address, handover, Canary(config, device, ctx_tokens, exact=exact), spans)
