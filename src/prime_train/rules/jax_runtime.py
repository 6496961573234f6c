"""Time limits, preemption notices and proxies of jax.distributed in a Python script. Pure.

Rules judge only literal values, because values that the script computes may be right.
"""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.grpc_proxy import NO_PROXIES, PROXIES, bypasses_proxy
from prime_train.rules.jax_processes import ADDRESS, starts
from prime_train.rules.rule import Problems, rule
from prime_train.spec import RunSpec

_PREEMPTION = "jax_enable_preemption_service"
_OFF = frozenset({"n", "no", "f", "false", "off", "0"})  # as JAX reads a variable: jax/_src/config.py, bool_env
_DEFAULT_INITIALIZATION_S = 300
_DEFAULT_HEARTBEAT_S = 100
_LONG_COMPILE_S = 120
_MANY_PROCESSES = 8
_COLD_START_S = 1800


@rule("JAX005", Severity.WARNING)
def heartbeat_shorter_than_a_compile(run: RunSpec) -> Problems:
    """The heartbeat limit should be longer than a first compile.

    a host that compiles sends no heartbeat and counts as dead, and all other hosts end with it

    JAX's default of 100 s is a note. The argument exists since JAX 0.7.0. A compile on several slices was measured at
    327 s.

    Source: JAX 0.10.2, jax/_src/distributed.py; github.com/jax-ml/jax/issues/23599;
    github.com/GoogleCloudPlatform/ml-auto-solutions/pull/1166.

    Bad (jax):
        jax.distributed.initialize(heartbeat_timeout_seconds=30)
    Bad (jax):
        jax.distributed.initialize()
    Good (jax):
        jax.distributed.initialize(heartbeat_timeout_seconds=600)
    """
    for at, start, _ in starts(run):
        limit_s = start.heartbeat_timeout_s
        field = f"{at}.heartbeat_timeout_s"
        fix = "heartbeat_timeout_seconds=600, longer than the longest compile"
        if limit_s is not None and limit_s < _LONG_COMPILE_S:
            what = f"{limit_s} s; a first compile of {_LONG_COMPILE_S} s and more is usual for a language model"
            yield Problem(field, what, fix=fix)
        elif "heartbeat_timeout_s" not in start.given and not start.passes_more:
            what = f"heartbeat_timeout_seconds is not given: {_DEFAULT_HEARTBEAT_S} s"
            yield Problem(field, what, fix=fix, severity=Severity.NOTE)


@rule("JAX006", Severity.WARNING)
def start_not_waited_for(run: RunSpec) -> Problems:
    """All processes need enough time to start.

    the first process waits for the last one: after the limit it ends with DEADLINE_EXCEEDED, and all others with it

    Hosts of a spot fleet start minutes apart, and install packages and read data first: with eight hosts JAX's default
    of 300 s was too short after a preemption, and 1800 s was enough. A longer limit has no other cost.

    Source: JAX 0.10.2, jax/_src/distributed.py; github.com/marin-community/marin/pull/7232.

    Bad (jax):
        jax.distributed.initialize(initialization_timeout=60, heartbeat_timeout_seconds=600)
    Bad (jax):
        jax.distributed.initialize("10.0.0.1:1234", 16, int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    Good (jax):
        jax.distributed.initialize(
            "10.0.0.1:1234", 16, int(os.environ["RANK"]), initialization_timeout=30 * 60, heartbeat_timeout_seconds=600
        )
    """
    for at, start, _ in starts(run):
        limit_s, count = start.initialization_timeout_s, start.num_processes or 0
        is_given = "initialization_timeout_s" in start.given or bool(start.passes_more)
        many = f" for {count} processes" if count >= _MANY_PROCESSES else ""
        shown_s = _DEFAULT_INITIALIZATION_S if limit_s is None and not is_given else limit_s
        if count == 1 or shown_s is None or shown_s > _DEFAULT_INITIALIZATION_S:
            continue
        if many or shown_s < _DEFAULT_INITIALIZATION_S:
            yield Problem(
                f"{at}.initialization_timeout_s",
                f"initialization_timeout of {shown_s} s{many}" + ("" if is_given else ", JAX's default"),
                fix=f"initialization_timeout={_COLD_START_S}",
            )


@rule("JAX007", Severity.WARNING)
def preemption_notice_unanswered(run: RunSpec) -> Problems:
    """A script that leaves the preemption service on must check for its notice.

    JAX takes SIGTERM and only sets a notice: a script that never checks for the notice is killed before it saves

    jax.experimental.multihost_utils.reached_preemption_sync_point checks for it, and so does orbax's CheckpointManager.
    JAX reads JAX_ENABLE_PREEMPTION_SERVICE only when it is imported.

    Source: JAX 0.10.2, jax/_src/distributed.py (jax_enable_preemption_service, on by default).

    Bad (script):
        import jax

        jax.distributed.initialize(heartbeat_timeout_seconds=600)
    Bad (script):
        import os

        import jax

        os.environ["JAX_ENABLE_PREEMPTION_SERVICE"] = "false"
        jax.distributed.initialize(heartbeat_timeout_seconds=600)
    Good (script):
        import os

        os.environ["JAX_ENABLE_PREEMPTION_SERVICE"] = "false"
        import jax

        jax.distributed.initialize(heartbeat_timeout_seconds=600)
    Good (script):
        import jax
        from jax.experimental import multihost_utils

        jax.distributed.initialize(heartbeat_timeout_seconds=600)
        for step in range(1000):
            if multihost_utils.reached_preemption_sync_point(step):
                break
    """
    jax = run.jax
    if jax is None or jax.answers_preemption:
        return
    variable = _PREEMPTION.upper()
    config, environment = jax.config or {}, jax.variables
    off = f'jax.config.update("{_PREEMPTION}", False) above the start'
    fix = f"{off}, or save when multihost_utils.reached_preemption_sync_point(step) is true"
    if _PREEMPTION in config:
        if config[_PREEMPTION] is True:
            yield Problem(f"jax.config.{_PREEMPTION}", "it is on, and the script never checks for the notice", fix=fix)
        return
    if variable in environment:
        value = environment[variable]
        if variable in jax.set_after_import:
            yield Problem(f"jax.environment.{variable}", "it is set after `import jax`, which reads it", fix=off)
        elif value is not None and value.lower() not in _OFF:
            yield Problem(
                f"jax.environment.{variable}", "it is on, and the script never checks for the notice", fix=fix
            )
    elif jax.environment_is_known:
        what = f"{_PREEMPTION} is left on, and the script never checks for the notice"
        yield Problem(f"jax.config.{_PREEMPTION}", what, fix=fix)


@rule("JAX008", Severity.WARNING)
def coordinator_through_a_proxy(run: RunSpec) -> Problems:
    """The coordinator must not be reached through a proxy.

    gRPC connects to the coordinator through the proxy, and the start waits for an answer until it times out

    gRPC reads grpc_proxy, https_proxy and http_proxy, and exceptions from no_grpc_proxy or no_proxy, all in lower case.
    An exception is the end of a host name, or a network such as 10.0.0.0/8.

    Source: JAX 0.10.2, jax/_src/distributed.py ("JAX detected proxy variable(s)"); grpc@0638416,
    src/core/handshaker/http_connect/http_proxy_mapper.cc.

    Bad (jax):
        os.environ["https_proxy"] = "http://proxy.example.org:3128"
        jax.distributed.initialize("10.0.0.1:1234", 4, int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    Bad (jax):
        os.environ.update(https_proxy="http://proxy.example.org:3128", no_proxy="localhost")
        jax.distributed.initialize("10.0.0.1:1234", 4, int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    Good (jax):
        os.environ.update(https_proxy="http://proxy.example.org:3128", no_proxy="localhost,10.0.0.0/8")
        jax.distributed.initialize("10.0.0.1:1234", 4, int(os.environ["RANK"]), heartbeat_timeout_seconds=600)
    """
    for _, start, jax in starts(run):
        environment = jax.variables
        proxy = next((name for name in PROXIES if name in environment), None)
        around = next((name for name in NO_PROXIES if name in environment), None)
        if proxy is None or environment[proxy] == "" or (around is None and not jax.environment_is_known):
            continue
        host = _host(start.coordinator_address or environment.get(ADDRESS))
        no_proxy = environment[around] if around is not None else ""
        if no_proxy is None or (around is not None and not host) or (host and bypasses_proxy(host, no_proxy)):
            continue
        missing = f"{host} is not in {around}" if around is not None else "there is no no_proxy"
        value = ",".join(part for part in ("localhost,127.0.0.1", host or "HOST_OF_PROCESS_0") if part)
        yield Problem(
            f"jax.environment.{proxy}",
            f"{proxy} is set, and {missing}",
            fix=f'os.environ["no_proxy"] = "{value}" beside it',
        )
        return


def _host(address: str | None) -> str:
    """The host of host:port, as gRPC compares it."""
    return (address or "").rpartition(":")[0].strip("[]")
