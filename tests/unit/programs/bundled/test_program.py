from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from prime_train.core.rundir import RunDir
from prime_train.programs.bundled import PROGRAM, needs, plan
from prime_train.spec import Data, Parallel, Run, RunSpec, Source
from prime_train.spec.server import Server
from prime_train.supervise.launch.program import Host, to_json

RUN = RunSpec(run=Run(name="a", max_steps=1), data=Data(sources=(Source(kind="python-stdlib"),)))
RUN_DIR = RunDir(Path("/runs/a"))
TRAINER = ("-m", "prime_train.trainer", "/runs/a", "--attempt", "3", "--resume-step", "40")


def test_one_process_is_started_directly() -> None:
    launch = plan(RUN, RUN_DIR, 3, 40)
    assert launch.argv == (sys.executable, *TRAINER)
    assert launch.log == Path("/runs/a/attempts/003/trainer.log")


def test_several_are_started_by_torchrun_which_never_restarts_them() -> None:
    argv = plan(replace(RUN, parallel=Parallel(processes=4)), RUN_DIR, 3, 40).argv
    assert argv[:3] == (sys.executable, "-m", "torch.distributed.run")
    assert argv[argv.index("--nproc-per-node") + 1] == "4"
    assert argv[argv.index("--max-restarts") + 1] == "0"
    assert argv[-len(TRAINER) :] == TRAINER
    assert "--standalone" not in argv  # its store listens on every interface
    assert argv[argv.index("--rdzv-endpoint") + 1] == "/runs/a/attempts/003/rendezvous"


def test_a_launch_is_written_down_without_what_was_inherited() -> None:
    written = json.loads(to_json(plan(RUN, RUN_DIR, 3, 40)))
    assert written["version"] == 1
    assert written["argv"][0] == sys.executable
    assert set(written) == {"version", "role", "argv", "cwd", "log", "variables"}


def test_a_server_beside_the_trainer_gets_a_share_of_the_cores() -> None:
    shares = [
        {variable.name: variable.value for variable in needs(run, RUN_DIR, 3, Host({}, 8, "1:1")).wanted}
        for run in (RUN, replace(RUN, server=Server()), replace(RUN, server=Server(engine="local")))
    ]
    assert [share["OMP_NUM_THREADS"] for share in shares] == ["8", "4", "8"]


def test_each_of_several_machines_starts_its_part_and_machine_0_the_relay() -> None:
    run = replace(RUN, parallel=Parallel(processes=8, dp_shard=8, machines=2))
    trainer, relay = PROGRAM.plan(run, RUN_DIR, 3, 20)
    assert trainer.argv[trainer.argv.index("--nproc-per-node") + 1] == "4"
    assert relay.role == "machines"
    assert relay.argv[relay.argv.index("--resume-step") + 1] == "20"
    assert [role.gpus for role in PROGRAM.roles(run)] == [4]


def test_each_machine_starts_a_launcher_of_its_replicas() -> None:
    layout = Parallel(processes=8, replicas=4, min_replicas=3, machines=2)
    run = replace(RUN, parallel=layout)
    launcher, relay = PROGRAM.plan(run, RUN_DIR, 3, 20)
    assert launcher.argv[1:3] == ("-m", "prime_train.trainer.replicas.launcher")
    options = {name: relay.argv[relay.argv.index(name) + 1] for name in ("--replicas", "--min-replicas")}
    assert options == {"--replicas": "2", "--min-replicas": "3"}
    assert [(role.gpus, role.least_gpus) for role in PROGRAM.roles(run)] == [(4, 4)]


def test_ranks_of_several_machines_meet_on_the_interface_between_them() -> None:
    run = replace(RUN, parallel=Parallel(processes=2, dp_shard=2, machines=2))
    for interface, expected in (("eth1", {"eth1"}), ("", set())):
        host = Host({"PRIME_TRAIN_MACHINE_INTERFACE": interface}, cores=8, supervisor="1:1")
        wanted = {each.name: each.value for each in needs(run, RUN_DIR, 1, host).wanted}
        found = {wanted[name] for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if name in wanted}
        assert found == expected
        assert wanted["OMP_NUM_THREADS"] == "8"
