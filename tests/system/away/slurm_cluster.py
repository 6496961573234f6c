"""A Slurm of one machine: controller and node in a folder of its own, on loopback, without a system service.

The programs are those of this machine, else those of Debian's packages, unpacked into the folder and not installed.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

DEADLINE_S = 60.0
_PACKAGES = ("slurmctld", "slurmd", "slurm-client")
_APT_S = 120.0


@dataclass(frozen=True, slots=True)
class Programs:
    """Where Slurm is: `root` is "/", or a folder with unpacked packages."""

    root: Path

    def find(self, name: str) -> str:
        """The path of a program. Debian's have the suffix -wlm. Skips the test if it is missing."""
        for place in ("usr/sbin", "usr/bin", "usr/local/sbin", "usr/local/bin"):
            for file in (self.root / place / name, self.root / place / f"{name}-wlm"):
                if file.is_file():
                    return str(file)
        pytest.skip(f"Slurm in {self.root} has no {name}")

    @property
    def libraries(self) -> list[Path]:
        """The folder of the system's libraries, and that of Slurm's plugins below it."""
        plugins = next(iter(sorted(self.root.glob("usr/lib/*/slurm*/auth_none.so"))), None)
        return [] if plugins is None else [plugins.parent.parent, plugins.parent]

    def environment(self) -> dict[str, str]:
        if self.root == Path("/"):
            return {}
        path = os.pathsep.join((str(self.root / "usr/bin"), os.environ.get("PATH", "")))
        return {"LD_LIBRARY_PATH": os.pathsep.join(map(str, self.libraries)), "PATH": path}


def find_programs(folder: Path) -> Programs:
    """Slurm of this machine, else unpacked into `folder`. Skips the test if there is neither."""
    if shutil.which("slurmctld") and shutil.which("slurmd") and shutil.which("sbatch"):
        return Programs(Path("/"))
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        pytest.skip("Slurm is not installed, and there is no apt-get to fetch it")
    packages, root = folder / "packages", folder / "root"
    packages.mkdir()
    try:
        names = _needed([])
        fetched = names and _apt(["download", *names], packages)
        if not fetched:  # without lists of packages, or with outdated ones: own lists, because root owns the others
            own = [f"-oDir::State::lists={folder / 'lists'}", f"-oDir::Cache={folder / 'cache'}"]
            (folder / "lists" / "partial").mkdir(parents=True)
            (folder / "cache" / "archives" / "partial").mkdir(parents=True)
            _apt([*own, "update"], packages)
            names = _needed(own)
            fetched = names and _apt([*own, "download", *names], packages)
    except subprocess.TimeoutExpired:
        fetched = False
    if not fetched:
        pytest.skip("Slurm is not installed, and apt-get cannot fetch it")
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True, capture_output=True)
    return Programs(root)


def _apt(arguments: list[str], cwd: Path) -> bool:
    command = ["apt-get", "--quiet", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, timeout=_APT_S, check=False).returncode == 0


def _needed(options: list[str]) -> list[str]:
    """The packages of Slurm and those that they need and this machine lacks."""
    command = ["apt-get", *options, "--simulate", "install", "--no-install-recommends", *_PACKAGES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_APT_S, check=False)
    return re.findall(r"^Inst (\S+)", done.stdout, re.MULTILINE) if done.returncode == 0 else []


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running Slurm. `variables` reach it: PATH, LD_LIBRARY_PATH, SLURM_CONF."""

    folder: Path
    variables: Mapping[str, str]

    def run(self, *command: str) -> str:
        """The output of a command of Slurm. Fails if the command does."""
        return subprocess.run(
            command,
            env={**os.environ, **self.variables},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=True,
        ).stdout

    def show(self, job_id: str) -> dict[str, str]:
        """The fields of `scontrol show job`."""
        text = self.run("scontrol", "--oneliner", "show", "job", job_id)
        return dict(re.findall(r"(\w+)=(.*?)(?=\s\w+(?::\w+)?=|\s*$)", text))

    def wait(self, job_id: str, *states: str, limit_s: float = DEADLINE_S) -> dict[str, str]:
        """The fields of a job when it has reached one of `states`. Fails when it is held: it stays as it is then."""
        give_up_s = time.monotonic() + limit_s
        while (fields := self.show(job_id))["JobState"] not in states:
            assert not fields["Reason"].endswith("_held"), f"{fields['Reason']}: {self.tail()}"
            assert time.monotonic() < give_up_s, f"not {states} within {limit_s:.0f} s: {fields} {self.tail()}"
            time.sleep(0.2)
        return fields

    def tail(self) -> str:
        """The ends of the logs of controller and node."""
        return "\n".join((self.folder / f"{name}.out").read_text()[-2000:] for name in ("slurmctld", "slurmd"))


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """A Slurm in `folder`. At the end its jobs are cancelled and its two processes ended."""
    programs = find_programs(folder)
    ports = _free_ports(2)
    with contextlib.ExitStack() as stack:
        # The node opens a socket in it for each job. The path of a socket has 107 bytes at most.
        spool = stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-"))
        _write_config(folder, Path(spool), programs, ports)
        found = Cluster(folder, {**programs.environment(), "SLURM_CONF": str(folder / "slurm.conf")})
        environment = {**os.environ, **found.variables}
        step = [] if programs.root == Path("/") else ["-d", programs.find("slurmstepd")]
        for name, options in (("slurmctld", ["-i"]), ("slurmd", ["-N", "localhost", *step])):
            log = stack.enter_context(open(folder / f"{name}.out", "wb"))
            process = subprocess.Popen(
                [programs.find(name), "-D", *options], env=environment, stdout=log, stderr=subprocess.STDOUT
            )
            stack.callback(_end, process)
        _wait_until_idle(found)
        stack.callback(_cancel_all, found)
        yield found


def _wait_until_idle(found: Cluster) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    state = ""
    while state != "idle":
        if time.monotonic() > give_up_s:
            pytest.skip(f"Slurm does not start on this machine: {found.tail()}")
        time.sleep(0.2)
        with contextlib.suppress(subprocess.CalledProcessError):  # the controller does not answer yet
            state = found.run("sinfo", "--noheader", "--format=%T").strip()


def _cancel_all(found: Cluster) -> None:
    for job_id in found.run("squeue", "--noheader", "--format=%A").split():
        found.run("scancel", job_id)
    give_up_s = time.monotonic() + DEADLINE_S
    while found.run("squeue", "--noheader") and time.monotonic() < give_up_s:
        time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def _write_config(folder: Path, spool: Path, programs: Programs, ports: list[int]) -> None:
    """slurm.conf and cgroup.conf: one node, no accounting, no control groups; nothing listens beyond loopback.

    A requeued job waits until its credential has expired, which is 120 s by default; here 5 s.
    """
    user = pwd.getpwuid(os.getuid()).pw_name
    version = subprocess.run(
        [programs.find("slurmd"), "-V"],
        env={**os.environ, **programs.environment()},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    plugins = [f"PluginDir={programs.libraries[-1]}"] if programs.root != Path("/") else []
    (folder / "state").mkdir()
    lines = [
        "ClusterName=test",
        "SlurmctldHost=localhost(127.0.0.1)",
        f"SlurmUser={user}",
        f"SlurmdUser={user}",
        f"SlurmctldPort={ports[0]}",
        f"SlurmdPort={ports[1]}",
        "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
        "AuthType=auth/none",
        "CredType=cred/none",
        "AuthInfo=cred_expire=5",
        *plugins,
        f"StateSaveLocation={folder / 'state'}",
        f"SlurmdSpoolDir={spool}",
        f"SlurmctldPidFile={folder / 'slurmctld.pid'}",
        f"SlurmdPidFile={folder / 'slurmd.pid'}",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "AccountingStorageType=accounting_storage/none",
        "SwitchType=switch/none",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU_Memory",
        "SchedulerType=sched/builtin",
        "SchedulerParameters=batch_sched_delay=0,sched_interval=2",
        "SlurmdParameters=config_overrides",
        "ReturnToService=2",
        "KillWait=20",
        f"NodeName=localhost NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={ports[1]}"
        " CPUs=16 Boards=1 SocketsPerBoard=16 CoresPerSocket=1 ThreadsPerCore=1 RealMemory=64000",
        "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
    ]
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    # "disabled" exists since 23.11; before, the first version of control groups loads without a mount.
    cgroup = "disabled" if numbers >= [23, 11] else "cgroup/v1"
    (folder / "cgroup.conf").write_text(f"CgroupPlugin={cgroup}\n")
