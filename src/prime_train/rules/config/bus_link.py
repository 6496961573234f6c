"""The address of the bus, and the credentials for it. Pure: no file is read."""

from __future__ import annotations

from prime_train.core.errors import UserError
from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule
from prime_train.spec import RunSpec


@rule("BUS001", Severity.ERROR)
def address_of_no_bus(run: RunSpec) -> Problems:
    """prime_train.bus.url must be an address that a run may use.

    it is a scheme, a host and a port; beyond this machine only TLS keeps passwords and commands from being read

    `run` would refuse to start with such an address. `local` is a folder of this machine.

    Source: bus/credentials.py.

    Bad:
        [prime_train.bus]
        url = "http://127.0.0.1:4222"
    Bad:
        [prime_train.bus]
        url = "nats://10.0.0.5:4222"
    Bad:
        [prime_train.bus]
        url = "tls://:4222"
    Good:
        [prime_train.bus]
        url = "tls://10.0.0.5:4222"
    """
    url = run.prime_train.bus.url
    if url is None or url == "local":
        return
    from prime_train.bus.credentials import parse_url  # here, because it loads OpenSSL, and most runs have no bus

    try:
        parse_url(url)
    except UserError as error:
        yield Problem("prime_train.bus.url", error.what, fix=error.fix, why=error.why)


@rule("BUS002", Severity.WARNING)
def credentials_without_a_bus(run: RunSpec) -> Problems:
    """Credentials for a bus need its address.

    without an address the run connects with nothing, and no controller sees it

    `prime-train run --bus URL` gives one for a single run.

    Source: supervise/agent/program.py.

    Bad:
        [prime_train.bus]
        credentials_file = "gpu-2.json"
    Good:
        [prime_train.bus]
        url = "tls://10.0.0.5:4222"
        credentials_file = "gpu-2.json"
    """
    link = run.prime_train.bus
    given = {"credentials_file": link.credentials_file, "credentials_env": link.credentials_env}
    names = [name for name, value in given.items() if value is not None]
    if link.url is None and names:
        what = f"{' and '.join(names)} without an address"
        yield Problem(f"prime_train.bus.{names[0]}", what, fix='`prime_train.bus.url` = "tls://HOST:4222"')
