"""The trainer's packages, and task environments: their names and where their tools run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prime_train.config.prime_rl.schema import features_of
from prime_train.core.findings import Problem, Severity
from prime_train.core.installation import install_command
from prime_train.rules.rule import Problems, facts_rule, known, rule, suggest
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of, trains
from prime_train.spec.prime_rl_parts import EnvironmentSource

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_ALWAYS_NEEDED = ("torch", "numpy", "tokenizers", "safetensors")
_REMOTE = "prime"
_SANDBOX = ("sandbox_", "cpu_cores", "disk_size_gb")  # verifiers, PythonEnv and SandboxEnv
_REMOTE_RUNTIMES = ("prime", "modal", "e2b")  # sandboxes of a provider; "subprocess" and "docker" are on this machine


@facts_rule("ENV001", Severity.ERROR, needs=("packages",))
def train_extra_missing(run: RunSpec, facts: Facts) -> Problems:
    """The trainer's packages must be installed beside prime-train, in versions that it is tested with.

    the command line works without them, the trainer does not

    A run that only serves has no trainer: ENG002 judges the interpreter of its server.

    Source: pyproject.toml, the extra `train`, whose oldest torch `make test-torch` tests.

    Bad:
        [facts.packages]
        missing = ["torch", "tokenizers"]
    Good:
        [facts.packages]
        missing = ["matplotlib"]
    Bad:
        [facts.packages]
        missing = []
        old = [{name = "torch", version = "2.9.1", needed = ">=2.11"}]
    Good:
        [facts.packages]
        missing = []
        old = [{name = "matplotlib", version = "3.8.4", needed = ">=3.9"}]
    """
    if not trains(run):
        return
    needed = {*_ALWAYS_NEEDED}
    if any(source.kind == "hf-dataset" for source in run.data.sources):
        needed |= {"datasets", "pyarrow"}
    of_audio = {"soundfile", "soxr", "scipy", "pyarrow"} if run.audio is not None else set()
    needed |= of_audio
    packages = known(facts.packages)
    missing = [name for name in packages.missing if name in needed]
    if missing:
        extra = "audio" if of_audio.intersection(missing) else "train"
        yield Problem("run.kind", f"not installed: {', '.join(missing)}", install_command(extra))
    old = [f"{one.name} {one.version} is not {one.needed}" for one in packages.old if one.name in needed]
    if old:
        yield Problem("run.kind", f"too old: {', '.join(old)}", install_command("train"))


@rule("ENV002", Severity.WARNING)
def tools_run_elsewhere(run: RunSpec) -> Problems:
    """An environment with tools should not run each call on a remote executor.

    a remote executor adds about 1.5 s to every call, and a local one is 10 to 15 times as fast: the GPUs wait

    Arguments of a sandbox, such as sandbox_memory_gb, show a remote executor that the environment starts by default.

    Source: operators' measurements of executor_backend = "prime" against "local"; the runtimes of prime-rl's
    benchmarks/runtimes.

    Bad (prime-rl 2026-08):
        [[orchestrator.train.source]]
        name = "reverse-text"
        env = {taskset = {id = "reverse-text"}, agent = {harness = {id = "bash"}, runtime = {type = "prime"}}}
    Good (prime-rl 2026-08):
        [[orchestrator.train.source]]
        name = "reverse-text"
        env = {taskset = {id = "reverse-text"}, agent = {harness = {id = "bash"}, runtime = {type = "docker"}}}
    Bad (prime-rl 2026-01):
        [[orchestrator.env]]
        id = "reverse-text"
        [orchestrator.env.args]
        executor_backend = "prime"
    Bad (prime-rl 2026-01):
        [[orchestrator.env]]
        id = "reverse-text"
        args = {sandbox_memory_gb = 1}
    Good (prime-rl 2026-01):
        [[orchestrator.env]]
        id = "reverse-text"
        [orchestrator.env.args]
        executor_backend = "local"
    """
    for at, source in _sources(run):
        if source.executor_backend == _REMOTE:
            yield suggest(f"{at}.executor_backend", f'"{_REMOTE}": every tool call goes over the network', "local")
        elif source.runtime in _REMOTE_RUNTIMES and source.harness not in (None, "null"):
            yield Problem(
                f"{at}.runtime",
                f'"{source.runtime}": every call of the harness "{source.harness}" goes over the network',
                fix=f'`{at}.runtime` = "subprocess", or "docker", where the tasks can run on this machine',
            )
        elif source.executor_backend is None and (argument := _sandbox_argument(source)):
            yield Problem(
                f"{at}.args.{argument}",
                "the environment runs its tools in a remote sandbox: every call goes over the network",
                fix=f'`{at}.args.executor_backend` = "local", if the environment has it, and its tasks can run here',
            )


def _sandbox_argument(source: EnvironmentSource) -> str | None:
    """The first argument of an environment that configures a remote sandbox."""
    return next((name for name in source.args or () if name.startswith(_SANDBOX)), None)


@rule("ENV003", Severity.WARNING)
def runtime_not_said(run: RunSpec) -> Problems:
    """An environment with an agent should set where the agent runs.

    without the key the environment chooses, and for agents with tools it chooses a remote sandbox

    Source: prime-rl's examples, env.agent.runtime.

    Bad (prime-rl 2026-08):
        [[orchestrator.train.source]]
        name = "reverse-text"
        env = {taskset = {id = "reverse-text"}, agent = {harness = {id = "bash"}}}
    Good (prime-rl 2026-08):
        [[orchestrator.train.source]]
        name = "reverse-text"
        env = {taskset = {id = "reverse-text"}, agent = {harness = {id = "bash"}, runtime = {type = "subprocess"}}}
    """
    for at, source in _sources(run):
        if source.has_agent and source.runtime is None and source.harness not in (None, "null"):
            yield Problem(
                f"{at}.runtime",
                f'no runtime is set for the harness "{source.harness}"',
                fix=f'`{at}.runtime` = "subprocess" for this machine, or the sandbox that you want',
            )


@rule("ENV004", Severity.ERROR)
def names_not_unique(run: RunSpec) -> Problems:
    """Environments must have different names.

    servers, metrics and checkpoints are identified by the name: prime-rl refuses two of one name

    Source: prime-rl's validator on source names; an environment without a name is called by its id.

    Bad (prime-rl 2026-08):
        [[orchestrator.train.source]]
        name = "math"
        env = {taskset = {id = "gsm8k"}, agent = {runtime = {type = "subprocess"}}}
        [[orchestrator.train.source]]
        name = "math"
        env = {taskset = {id = "aime"}, agent = {runtime = {type = "subprocess"}}}
    Good (prime-rl 2026-08):
        [[orchestrator.train.source]]
        name = "gsm8k"
        env = {taskset = {id = "gsm8k"}, agent = {runtime = {type = "subprocess"}}}
        [[orchestrator.train.source]]
        name = "aime"
        env = {taskset = {id = "aime"}, agent = {runtime = {type = "subprocess"}}}
    """
    parts = prime_rl_of(run)
    if parts.environments is None:
        return
    for part, sources in (("train", parts.environments.train), ("evaluate", parts.environments.evaluate)):
        names = [source.name or source.id for source in sources or ()]
        seen: Counter[str] = Counter()
        for number, name in enumerate(names):
            if name is None:
                continue
            seen[name] += 1
            if seen[name] > 1:
                at = f"environments.{part}.{number}.name"
                yield suggest(at, f'"{name}" names {names.count(name)} environments', f"{name}-{seen[name]}")


@rule("ENV005", Severity.ERROR)
def name_reserved(run: RunSpec) -> Problems:
    """No environment may be called "agg".

    prime-rl uses that name for metrics over all environments, and refuses it for a single one

    Source: prime-rl's validator on source names.

    Bad (prime-rl 2026-08):
        [[orchestrator.train.source]]
        name = "agg"
        env = {taskset = {id = "gsm8k"}, agent = {runtime = {type = "subprocess"}}}
    Good (prime-rl 2026-08):
        [[orchestrator.train.source]]
        name = "gsm8k"
        env = {taskset = {id = "gsm8k"}, agent = {runtime = {type = "subprocess"}}}
    """
    if run.prime_rl is None:
        return
    reserved = features_of(run).reserved_environment_names
    for at, source in _sources(run):
        if source.name in reserved:
            yield suggest(f"{at}.name", f'"{source.name}" is reserved', source.id or "tasks")


def _sources(run: RunSpec) -> Iterator[tuple[str, EnvironmentSource]]:
    """(RunSpec field, environment) of every source, of training first."""
    parts = prime_rl_of(run)
    if parts.environments is None:
        return
    for part, sources in (("train", parts.environments.train), ("evaluate", parts.environments.evaluate)):
        for number, source in enumerate(sources or ()):
            yield f"environments.{part}.{number}", source
