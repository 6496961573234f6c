"""What the run needs from ports, the Hugging Face hub, Weights & Biases and vLLM. Pure: the facts are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, facts_rule, known
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

# An answer of facts.HubAnswer that keeps a run from its files -> (what, fix).
_REFUSALS = {
    "gated": ("its terms are not accepted (403)", "accept them on https://huggingface.co/{name}, then hf auth login"),
    "forbidden": ("the token may not read it (403)", "make a token that may read it, then hf auth login"),
    "login": ("it is private or missing, and no account is logged in (401)", "check the name, or hf auth login"),
    "bad-token": ("the hub does not know the token (401)", "hf auth login with a token that is still valid"),
    "not-cached": (
        "it is not in the local cache, and HF_HUB_OFFLINE is set",
        "hf download {name} before going offline",
    ),
    "missing": ("there is no such repository (404)", "check the name"),
}


@facts_rule("SRV001", Severity.ERROR, needs=("busy_ports",))
def port_busy(run: RunSpec, facts: Facts) -> Problems:
    """Every port that the run listens on must be free.

    a process that cannot open its port ends with "Address already in use", after the others have started

    Source: bind(2), EADDRINUSE.

    Bad (prime-rl 2026-08):
        [facts]
        busy_ports = [{port = 8000, why = "it is in use"}]
    Good (prime-rl 2026-08):
        [facts]
        busy_ports = []
    """
    from prime_train.facts.requirements import services

    why = {busy.port: busy.why for busy in known(facts.busy_ports)}
    for service in services(run):
        if service.port in why:
            yield Problem(
                service.field,
                f"port {service.port}, for {service.who}: {why[service.port]}",
                fix=f"end what listens there (ss -ltnp 'sport = :{service.port}'), or another `{service.field}`",
            )


@facts_rule("SRV002", Severity.ERROR, needs=("hub",))
def repository_out_of_reach(run: RunSpec, facts: Facts) -> Problems:
    """The account must be able to read every repository of the run on the Hugging Face hub.

    the download fails after the GPUs are paid for

    With HF_HUB_OFFLINE=1 the run uses only the local cache, and cannot read a repository that is not in it.

    Source: huggingface.co, docs of the hub: gated models, user access tokens.

    Bad (prime-rl 2026-08):
        [facts]
        hub = [{kind = "model", name = "Qwen/Qwen3-1.7B", answer = "gated", detail = "", has_tokenizer = false}]
    Bad (prime-rl 2026-08):
        [facts]
        hub = [{kind = "model", name = "Qwen/Qwen3-1.7B", answer = "missing", detail = "", has_tokenizer = false}]
    Good (prime-rl 2026-08):
        [facts]
        hub = [{kind = "model", name = "Qwen/Qwen3-1.7B", answer = "open", detail = "", has_tokenizer = true}]
    """
    from prime_train.facts.requirements import repositories

    fields = repositories(run)
    for repository in known(facts.hub):
        field, refusal = fields.get((repository.kind, repository.name)), _REFUSALS.get(str(repository.answer))
        if field is None or refusal is None:
            continue
        what, fix = refusal
        yield Problem(field, f"{repository.kind} {repository.name}: {what}", fix=fix.format(name=repository.name))


@facts_rule("SRV003", Severity.ERROR, needs=("hub",))
def repository_without_tokenizer(run: RunSpec, facts: Facts) -> Problems:
    """A model without a tokenizer needs one named beside it.

    trainer and inference both end when they load it

    Source: transformers, AutoTokenizer.from_pretrained.

    Bad (prime-rl 2026-08):
        [facts]
        hub = [{kind = "model", name = "Qwen/Qwen3-1.7B", answer = "open", detail = "", has_tokenizer = false}]
    Good (prime-rl 2026-08):
        [facts]
        hub = [{kind = "model", name = "Qwen/Qwen3-1.7B", answer = "cached", detail = ""}]
    """
    parts = prime_rl_of(run)
    if parts.trainer is None:
        return
    name = parts.trainer.tokenizer_name or parts.trainer.model_name
    for repository in known(facts.hub):
        if repository.kind == "model" and repository.name == name and repository.has_tokenizer is False:
            if str(repository.answer) != "open":
                continue
            field = "trainer.tokenizer_name" if parts.trainer.tokenizer_name else "trainer.model_name"
            yield Problem(field, f"{name} has no tokenizer on the hub", fix="name one in `trainer.tokenizer_name`")


@facts_rule("SRV004", Severity.ERROR, needs=("wandb",))
def no_wandb_login(run: RunSpec, facts: Facts) -> Problems:
    """A run that reports to Weights & Biases needs a key.

    without a key, wandb tries to read one from a terminal, and ends the run

    Source: docs.wandb.ai, wandb login, environment variables.

    Bad (prime-rl 2026-08):
        [monitors.wandb]
        project = "mine"
        [facts.wandb]
        found = ""
        host = "api.wandb.ai"
    Good (prime-rl 2026-08):
        [monitors.wandb]
        project = "mine"
        [facts.wandb]
        found = "WANDB_API_KEY"
    """
    login = known(facts.wandb)
    if (
        prime_rl_of(run).monitor is None
        or login is None
        or login.found
        or login.mode in ("offline", "disabled", "dryrun")
    ):
        return
    beside = f"; {login.problem}" if login.problem else ""
    yield Problem(
        "monitor.project",
        f"there is no key for {login.host}, neither in WANDB_API_KEY nor in the netrc file{beside}",
        fix="wandb login, or WANDB_MODE=offline",
    )


@facts_rule("SRV005", Severity.ERROR, needs=("engine",))
def engine_does_not_start(_run: RunSpec, facts: Facts) -> Problems:
    """vLLM must start with the arguments that the config gives it.

    trainer and orchestrator would wait half an hour for a server that never comes

    Judged only with --deep, which starts vLLM once, without weights, and ends it.

    Source: vLLM, its own start-up errors.

    Bad (prime-rl 2026-08):
        [facts.engine]
        failure = "config"
        line = "ValueError: User-specified max_model_len (4096) is greater than the derived max_model_len"
        took_s = 21.0
    Good (prime-rl 2026-08):
        [facts.engine]
        took_s = 71.0
    """
    engine = known(facts.engine)
    if engine is None or not engine.failure:
        return
    fixes = {
        "port": "end what else listens there",
        "environment": "repair the interpreter of the run: a package is missing or built for another torch",
        "driver": "repair the driver: nvidia-smi",
        "memory": "a smaller `inference.ctx_tokens`, or another `inference.gpu_memory_fraction`",
        "model": "check `inference.model_name`, and that this vLLM knows its architecture",
        "config": "correct the argument that it names",
        "timeout": "start it by hand, and read its log",
    }
    yield Problem(
        "inference.model_name",
        f"vLLM ended after {engine.took_s:.0f} s ({engine.failure}): {engine.line}",
        fix=fixes.get(engine.failure, "start it by hand, and read its log"),
    )
