"""Ports, hosts and timeouts of the processes of a run, and whether they agree. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from prime_train.config.prime_rl.schema import features_of
from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule, suggest, values_of
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of

_LOCAL = r"https?://(?:localhost|127\.0\.0\.1|0\.0\.0\.0)(?::(\d+))?(?:/|$)"
_PRIVILEGED = 1024  # ports below belong to root; Linux, ip(7)
_SHORTEST_READY_S = 300
_SHORTEST_COLLECTIVE_S = 300
_USUAL_COLLECTIVE_S = 3600

_SHORTEST_ANSWER_S = 60


@rule("NET001", Severity.ERROR)
def port_taken_twice(run: RunSpec) -> Problems:
    """No two processes of a run can listen on one port.

    the second one ends with "Address already in use", after the first has loaded its model

    Source: prime-rl's ports: server 8000, engine 8100, broadcast 29501, rollouts 5555, environments 5000 and up,
    metrics of the trainer 8000.

    Bad (prime-rl 2026-08):
        [inference.server]
        port = 8000
        [trainer.metrics_server]
        port = 8000
    Bad (prime-rl 2026-08):
        [inference]
        backend_port = 8000
    Good (prime-rl 2026-08):
        [inference.server]
        port = 8000
        [trainer.metrics_server]
        port = 9100
    """
    parts = prime_rl_of(run)
    if parts.deployment is not None and parts.deployment.kind == "multi_node":
        return
    taken: dict[int, str] = {}
    for at, port in _ports(run):
        if port in taken:
            yield suggest(at, f"{port} is the port of `{taken[port]}`", _find_free_port(port, run))
        else:
            taken[port] = at


@rule("NET002", Severity.ERROR)
def client_asks_another_port(run: RunSpec) -> Problems:
    """The orchestrator must call the port that inference listens on.

    prime-rl refuses two ports, or the orchestrator waits half an hour for a server that listens on another one

    Source: prime-rl's launcher (port of base_url against inference.server.port).

    Bad (prime-rl 2026-08):
        [inference.server]
        port = 8001
        [orchestrator.model.client]
        base_url = "http://localhost:8000/v1"
    Bad (prime-rl 2026-01):
        [inference.server]
        port = 8001
        [orchestrator.client]
        base_url = ["http://localhost:8000/v1"]
    Good (prime-rl 2026-08):
        [inference.server]
        port = 8001
        [orchestrator.model.client]
        base_url = "http://localhost:8001/v1"
    """
    rollout, inference = prime_rl_of(run).rollout, run.inference
    if rollout is None or inference is None or inference.port is None or len(rollout.base_urls or ()) != 1:
        return
    local = re.match(_LOCAL, (rollout.base_urls or ("",))[0])
    if local is None or local.group(1) is None or int(local.group(1)) == inference.port:
        return
    yield suggest(
        "inference.port", f"{inference.port}, and `rollout.base_urls` asks port {local.group(1)}", int(local.group(1))
    )


@rule("NET003", Severity.WARNING)
def port_of_root(run: RunSpec) -> Problems:
    """Ports below 1024 need root.

    a process of an ordinary user cannot open the port, and ends at its start

    Source: Linux, ip(7), privileged ports.

    Bad (prime-rl 2026-08):
        [inference.server]
        port = 80
        [orchestrator.model.client]
        base_url = "http://localhost:80/v1"
    Good (prime-rl 2026-08):
        [inference.server]
        port = 8000
    """
    parts = prime_rl_of(run)
    for at, port in _ports(run):
        if 0 < port < _PRIVILEGED:
            is_called = at == "inference.port" and parts.rollout is not None and bool(parts.rollout.base_urls)
            fix = f"`{at}` = {8000 + port}, and the same port in `rollout.base_urls`" if is_called else ""
            yield Problem(at, f"{port} is below {_PRIVILEGED}", fix, {} if is_called else {at: 8000 + port})


@rule("NET004", Severity.WARNING)
def little_time_to_load(run: RunSpec) -> Problems:
    """The orchestrator should give inference minutes to load.

    it gives up while vLLM still loads weights and captures graphs, and the run ends before its first step

    Source: prime-rl's wait_for_ready_timeout (1800 s) against VLLM_ENGINE_READY_TIMEOUT_S (4200 s).

    Bad (prime-rl 2026-08):
        [orchestrator.model.client]
        wait_for_ready_timeout = 60
    Good (prime-rl 2026-08):
        [orchestrator.model.client]
        wait_for_ready_timeout = 3600
    """
    yield from _must_be_at_least(run, "rollout.wait_for_ready_s", _SHORTEST_READY_S, 1800)


@rule("NET009", Severity.WARNING)
def little_time_to_answer(run: RunSpec) -> Problems:
    """The orchestrator should give a request minutes to be answered.

    one long completion under load takes longer: the client gives up, repeats the request, and the load grows

    Source: prime-rl's client.timeout, 1200 s.

    Bad (prime-rl 2026-05):
        [orchestrator.student.client]
        timeout = 5
    Bad (prime-rl 2026-01):
        [orchestrator.client]
        timeout = 5
    Good (prime-rl 2026-01):
        [orchestrator.client]
        timeout = 1200
    """
    yield from _must_be_at_least(run, "rollout.client_timeout_s", _SHORTEST_ANSWER_S, 1200)


@rule("NET005", Severity.WARNING)
def little_time_for_collectives(run: RunSpec) -> Problems:
    """Collectives should have minutes before they time out.

    ranks wait for the slowest: a checkpoint or a first compile takes longer, and the watchdog ends a healthy run

    Source: torch.distributed (10 min by default for NCCL); prime-rl, dist_timeout_seconds (600 s, then 3600 s).

    Bad (prime-rl 2026-08):
        [trainer]
        dist_timeout_seconds = 60
    Good (prime-rl 2026-08):
        [trainer]
        dist_timeout_seconds = 3600
    """
    yield from _must_be_at_least(run, "trainer.dist_timeout_s", _SHORTEST_COLLECTIVE_S, _USUAL_COLLECTIVE_S)


def _must_be_at_least(run: RunSpec, at: str, shortest_s: int, usual_s: int) -> Problems:
    found = values_of(run, at)
    if found is not None and found[0] < shortest_s:
        yield suggest(at, f"{found[0]} s is less than {shortest_s} s", usual_s)


@rule("NET006", Severity.ERROR)
def offline_shared_run(run: RunSpec) -> Problems:
    """A W&B run that several processes share cannot be offline.

    trainer and orchestrator write to one run through the server, so prime-rl refuses an offline one

    Source: prime-rl 2026-08, validator on monitors.wandb.offline.

    Bad (prime-rl 2026-08):
        [monitors.wandb]
        project = "example"
        offline = true
    Good (prime-rl 2026-08):
        [monitors.wandb]
        project = "example"
    """
    parts = prime_rl_of(run)
    if parts.monitor is None or parts.finetune is not None:
        return
    if not features_of(run).refuses_offline_shared_run:
        return
    if parts.monitor.offline and parts.rollout is not None and parts.trainer is not None:
        yield suggest(
            "monitor.offline",
            "true, for a run that trainer and orchestrator share",
            None,
            fix="take it out, or set WANDB_MODE=offline, which gives each its own run",
        )


@rule("NET007", Severity.ERROR)
def broadcasts_disagree(run: RunSpec) -> Problems:
    """Trainer, orchestrator and inference must broadcast weights the same way.

    one sends where the other does not listen: prime-rl refuses it

    Source: prime-rl's validator on weight_broadcast.type.

    Bad (prime-rl 2026-08):
        [trainer.weight_broadcast]
        type = "nccl"
        [orchestrator.weight_broadcast]
        type = "filesystem"
    Good (prime-rl 2026-08):
        [weight_broadcast]
        type = "nccl"
    """
    broadcast = prime_rl_of(run).weight_broadcast
    if broadcast is None or broadcast.trainer_kind is None:
        return
    sets_server = run.inference is not None and broadcast.inference_kind is None  # its default is the other one
    for name in ("rollout_kind", "inference_kind"):
        kind = getattr(broadcast, name)
        if kind is not None and kind != broadcast.trainer_kind:
            patch = {f"weight_broadcast.{name}": broadcast.trainer_kind}
            patch |= {"weight_broadcast.inference_kind": broadcast.trainer_kind} if sets_server else {}
            what = f'"{kind}" is not `weight_broadcast.trainer_kind` "{broadcast.trainer_kind}"'
            yield Problem(f"weight_broadcast.{name}", what, patch=patch)


@rule("NET008", Severity.ERROR)
def nccl_on_one_gpu(run: RunSpec) -> Problems:
    """NCCL broadcast needs two GPUs.

    two ranks of one group cannot be on one GPU: prime-rl refuses it

    Source: prime-rl's validator on weight_broadcast.type = "nccl"; NCCL user guide.

    Bad (prime-rl 2026-01):
        trainer_gpu_ids = [0]
        inference_gpu_ids = [0]
        [inference]
        gpu_memory_utilization = 0.5
        [inference.parallel]
        dp = 1
        [weight_broadcast]
        type = "nccl"
    Good (prime-rl 2026-08):
        [weight_broadcast]
        type = "nccl"
    """
    parts = prime_rl_of(run)
    gpus, broadcast = parts.deployment, parts.weight_broadcast
    if gpus is None or broadcast is None or broadcast.kind != "nccl" or gpus.train_gpu_ids is None:
        return
    if len({*gpus.train_gpu_ids, *(gpus.infer_gpu_ids or ())}) < 2:
        yield suggest(
            "weight_broadcast.kind",
            f'"nccl", and GPU {gpus.train_gpu_ids[0] if gpus.train_gpu_ids else 0} is the only one',
            "filesystem",
        )


def _ports(run: RunSpec) -> Iterator[tuple[str, int]]:
    """(RunSpec field, port) of every listener of this run."""
    parts = prime_rl_of(run)
    inference, broadcast, transport = run.inference, parts.weight_broadcast, parts.transport
    listeners = [
        ("inference.port", inference.port if inference else None),
        ("inference.backend_port", inference.backend_port if inference and inference.router else None),
        ("weight_broadcast.port", broadcast.port if broadcast and broadcast.kind == "nccl" else None),
        ("transport.port", transport.port if transport and transport.kind == "zmq" else None),
        ("trainer.metrics_port", parts.trainer.metrics_port if parts.trainer else None),
        ("rollout.env_server_base_port", parts.rollout.env_server_base_port if parts.rollout else None),
    ]
    yield from ((at, port) for at, port in listeners if port is not None)


def _find_free_port(port: int, run: RunSpec) -> int:
    taken = {port for _, port in _ports(run)}
    candidates: tuple[int, ...] = (*range(port + 1, 65536), *range(9000, 9100))
    return next(candidate for candidate in candidates if candidate not in taken)
