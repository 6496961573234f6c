"""Two machines on loopback: each has a folder, an address and a `prime-train run` of its own."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from prime_train.checkpoints import layout
from prime_train.core.machines import SECRET
from prime_train.core.plans import list_versions, read_plan, write_plan
from prime_train.core.rundir import RunDir
from prime_train.events import Event, SettingsApplied, read
from tests import fork_server
from tests.unit.cli import small
from tests.unit.cli.commands import clean_environment

ADDRESSES = "127.0.0.1,127.0.0.2"
NAME = "small"
LIMIT_S = 240.0
_REPOSITORY = Path(__file__).resolve().parents[4]
_MAIN = "from prime_train.cli.entry import main; main()"


def write(root: Path) -> None:
    """The config and the text that both machines have, in the folder of each."""
    for name in ("0", "1"):
        (root / name).mkdir(parents=True)
        small.write(root / name)


def free_port() -> int:
    """A port of loopback that is free, and the next one too."""
    while True:
        with ExitStack() as stack:
            first, second = (stack.enter_context(socket.socket()) for _ in range(2))
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def run_dir(root: Path, rank: int = 0) -> RunDir:
    """The folder to which a machine writes."""
    found = (root / str(rank) / "runs" / NAME).resolve()
    return RunDir(found if rank == 0 else found / "machines" / str(rank))


def read_events(run_dir: RunDir) -> list[Event]:
    return [record.event for record in read(run_dir.events)]


def read_weights(run_dir: RunDir, step: int) -> dict[str, str]:
    """The hash of every file of a checkpoint that holds tensors."""
    files = json.loads((run_dir.checkpoint(step) / layout.MANIFEST).read_text(encoding="utf-8"))["files"]
    return {name: about["sha256"] for name, about in files.items() if name.endswith(".distcp")}


def set_processes(processes: int) -> tuple[str, ...]:
    """The settings of a run on so many processes of all machines, which share each parameter."""
    return (f"parallel.processes={processes}", f"parallel.dp_shard={processes}", "batch.global_batch=8")


def arguments(*settings: str) -> list[str]:
    return ["run", "run.toml", "--no-validate", *(word for setting in settings for word in ("--set", setting))]


def train_alone(folder: Path, *settings: str) -> RunDir:
    """The run on one machine, to its end."""
    subprocess.run(
        [sys.executable, "-c", _MAIN, *arguments(*settings)], cwd=folder, env=_environment(folder, 1), check=True
    )
    return RunDir((folder / "runs" / NAME).resolve())


def train_alike(folder: Path, other: RunDir, settings: Sequence[str]) -> RunDir:
    """The run on one machine, with the changes of another run at the same steps."""
    alone = RunDir((folder / "runs" / NAME).resolve())
    for version in list_versions(other.settings):
        write_plan(alone.settings, read_plan(other.settings, version))
    applied = [event for event in read_events(other) if isinstance(event, SettingsApplied)]
    alone.attempt(1).mkdir(parents=True)
    steps = {"applied": [[event.version, event.step] for event in applied]}
    alone.applied_settings(1).write_text(json.dumps(steps), encoding="utf-8")
    return train_alone(folder, *settings)


@contextmanager
def machine(
    root: Path,
    rank: int,
    port: int,
    *settings: str,
    fork_from_attempt: int = 1,
    addresses: str = ADDRESSES,
    within: Sequence[str] = (),
    secret: str = "",
    harm: str = "",
) -> Iterator[subprocess.Popen[str]]:
    """`prime-train run` on one machine; its output is one text. It is ended at the end of the block.

    Trainers are forked from an attempt on that nobody harms; see tests/fork_server.py. `within`: the command that
    enters the network of this machine. `harm`: of the trainer in its first attempt; see tests/drills/hooks/harm.py.
    """
    harmed = {"DRILL_HARM": harm, "PYTHONPATH": f"{_REPOSITORY / 'src'}:{_REPOSITORY / 'tests' / 'drills' / 'hooks'}"}
    place = ["--machine-rank", str(rank), "--machine-addresses", addresses, "--machine-port", str(port)]
    folder = root / str(rank)
    process = subprocess.Popen(
        [*within, sys.executable, "-c", _MAIN, *arguments(*settings), *place],
        cwd=folder,
        env=_environment(folder, fork_from_attempt) | ({SECRET: secret} if secret else {}) | (harmed if harm else {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _environment(folder: Path, fork_from_attempt: int) -> dict[str, str]:
    """One thread, because the number of threads changes how a sum is rounded. Caches are those of the machine."""
    own = {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder)}
    return {**clean_environment(), **fork_server.variables(fork_from_attempt), **own}
