"""`prime-train control`: one page for all runs in this folder, and with --bus for those on other machines."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prime_train.cli.control.bus import (
    LOCAL,
    LOOPBACK,
    NATS,
    BusCredentials,
    BusUrl,
    Joined,
    add_machine,
    connect,
    describe_joining,
    remove_machine,
    require_nats,
    start_server,
)
from prime_train.cli.terminal.options import AsJson, NoColor
from prime_train.core.errors import ExitCode, UserError
from prime_train.views.run.runs import RUNS, run_names

if TYPE_CHECKING:
    from prime_train.control.access import Address, Tokens
    from prime_train.control.encryption import Encryption
    from prime_train.control.remote import RemoteRuns

PORT = 8747
_PACKAGES = ("starlette", "uvicorn", "sse_starlette", "plotly")  # of the extra


def control(
    port: Annotated[int, typer.Option("--port", metavar="N", help="The port; 0 takes a free one.")] = PORT,
    host: Annotated[
        str,
        typer.Option("--host", metavar="ADDRESS", help="One address of this machine."),
    ] = "127.0.0.1",
    tls: Annotated[
        str, typer.Option("--tls", metavar="auto", help="Make a certificate for --host, or take the one it has.")
    ] = "",
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="A certificate, as PEM.", show_default=False)
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="Its key, mode 600.", show_default=False)
    ] = None,
    bus: BusUrl = None,
    bus_credentials: BusCredentials = None,
    bus_host: Annotated[
        str,
        typer.Option("--bus-host", metavar="ADDRESS", help="With --bus nats: where it listens; not loopback = TLS."),
    ] = LOOPBACK,
    bus_port: Annotated[
        int,
        typer.Option("--bus-port", metavar="N", min=0, max=65535, help="With --bus nats; 0: the same as last time."),
    ] = 0,
    added: Annotated[
        list[str] | None,
        typer.Option(
            "--add-machine", metavar="NAME", help="Credentials for a machine; without --bus: and nothing else."
        ),
    ] = None,
    removed: Annotated[
        str | None, typer.Option("--remove-machine", metavar="NAME", help="Delete what a machine connects with.")
    ] = None,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Show all runs of this folder on a page: devices, curves, failures, settings, logs.

    Only those with the token in the printed address may open it. It listens on 127.0.0.1; from another machine:
    ssh -L 8747:127.0.0.1:8747 HOST, or --host with TLS. Ctrl-C ends it; runs go on, and the next start shows the same
    page.

    Needs the extra: pip install 'prime-train[control]'.

    Examples:

      prime-train control

      prime-train control --port 0 --json

      prime-train control --host 10.0.0.5 --tls auto

      prime-train control --bus nats

      prime-train control --add-machine gpu-2
    """
    if bus is None and (added or removed):
        _change_machines(added or [], removed)
        return
    _check_extra()
    if bus not in (None, LOCAL):
        require_nats()  # before a token is written
    here = Path.cwd()
    if bus is None and not run_names(here):
        fix = "cd to the folder where runs are started, or start one with `prime-train run`"
        raise UserError("there is no run to show", str(here / RUNS), "the page shows the runs of one folder", fix)
    # Lazy, because only this command needs the extra.
    from prime_train.control.access import Address, load_tokens
    from prime_train.control.encryption import choose_encryption
    from prime_train.control.index import Index
    from prime_train.control.serve import control_folder, open_port, serve
    from prime_train.control.watcher import Watcher

    folder = control_folder(here / RUNS)
    encryption = choose_encryption(host, tls, tls_cert, tls_key, folder)
    tokens = load_tokens(folder)
    listener = open_port(port, host)
    address = Address(listener.getsockname()[1], host.lower(), encryption is not None)
    joined = None if bus is None else _join(bus, bus_credentials, bus_host, bus_port, added or [])
    _show_address(address, tokens, encryption, here / RUNS, joined, as_json)
    # The server has closed everything when the interruption arrives here.
    with suppress(KeyboardInterrupt), closing(Index(folder / "index.sqlite")) as index, _follow(joined) as remote:
        serve(Watcher(here, index, remote=remote), listener, address, tokens, encryption)


@contextmanager
def _follow(joined: Joined | None) -> Iterator["RemoteRuns | None"]:
    """Hears the agents while the block runs; None without a bus."""
    if joined is None:
        yield None
        return
    joined.remote.start()
    try:
        yield joined.remote
    finally:
        joined.remote.close()


def _show_address(
    address: "Address",
    tokens: "Tokens",
    encryption: "Encryption | None",
    runs: Path,
    joined: Joined | None,
    as_json: bool,
) -> None:
    url, viewer_url = f"{address.url}?t={tokens.owner}", f"{address.url}?t={tokens.viewer}"
    fingerprint = encryption.fingerprint if encryption else None
    if as_json:
        document = {"version": 1, "url": url, "viewer_url": viewer_url, "pid": os.getpid(), "runs": str(runs)}
        document |= {"fingerprint": fingerprint} | ({} if joined is None else {"bus": joined.document})
        typer.echo(json.dumps(document))
    else:
        # No browser is started, because every user of the machine could read the token in its arguments.
        typer.echo(f"runs in {runs}\n  page         {url}\n  only to read {viewer_url}")
        if fingerprint:
            typer.echo(f"  certificate  SHA-256 {fingerprint}")
        for line in describe_joining(joined.address, joined.machines) if joined and joined.machines else ():
            typer.echo(line)
        typer.echo("Ctrl-C ends the page; runs go on", err=True)
    sys.stdout.flush()


def _join(bus: str, credentials: Path | None, host: str, port: int, machines: list[str]) -> Joined:
    """Start a server, or connect with one. Raises UserError."""
    if bus == NATS:
        return start_server(host, port, machines)
    if host != LOOPBACK or port or machines:
        what, why = (
            "--bus-host, --bus-port and --add-machine are for a server that this command starts",
            "it runs already",
        )
        raise UserError(what, f"--bus {bus}", why, "--bus nats, or leave them out")
    return connect(bus, credentials)


def _change_machines(added: list[str], removed: str | None) -> None:
    if removed is not None:
        typer.echo(remove_machine(removed))
    for name in added:
        for line in add_machine(name):
            typer.echo(line)


def _check_extra() -> None:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        what = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        why = "the page needs a web server and plotly, which other commands do not"
        fix = f"{sys.executable} -m pip install 'prime-train[control]'; `prime-train top` needs none of it"
        raise UserError(what, sys.executable, why, fix, ExitCode.OUT_OF_REACH)
