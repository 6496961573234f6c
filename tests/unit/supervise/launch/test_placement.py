from __future__ import annotations

from prime_train.programs import program_of
from prime_train.spec import Data, Parallel, Run, RunSpec
from prime_train.spec.server import Server
from prime_train.supervise.launch.environment import assign_gpus
from prime_train.supervise.launch.program import Variable

GPUS = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")
SERVER = Server(model="m", arguments={"data-parallel-size": 2})


def run(processes: int, server: Server | None, *, serves: bool = False) -> RunSpec:
    return RunSpec(
        run=Run(name="a", kind="serve" if serves else "pretrain", max_steps=1),
        data=Data(sources=()),
        parallel=Parallel(processes=processes),
        server=server,
    )


def seen(role: str, spec: RunSpec, gpus: tuple[str, ...] = GPUS, left_out: tuple[str, ...] = ()) -> str | None:
    found = assign_gpus(role, program_of(spec).roles(spec), gpus, left_out)
    return found.value if isinstance(found, Variable) else None


def test_trainer_and_server_have_gpus_of_their_own() -> None:
    spec = run(2, SERVER)
    assert seen("trainer", spec) == "GPU-a,GPU-b"
    assert seen("inference", spec) == "GPU-c,GPU-d"


def test_a_gpu_that_failed_moves_both() -> None:
    spec = run(1, SERVER)
    assert seen("trainer", spec, left_out=("GPU-a",)) == "GPU-b"
    assert seen("inference", spec, left_out=("GPU-a",)) == "GPU-c,GPU-d"


def test_on_too_few_they_share() -> None:
    spec = run(1, Server(model="m"))
    assert seen("trainer", spec, GPUS[:1]) is None
    assert seen("inference", spec, GPUS[:1]) is None
    assert seen("inference", spec, GPUS[:2], ("GPU-a",)) == "GPU-b"


def test_a_run_of_one_role_sees_everything() -> None:
    assert seen("trainer", run(2, None)) is None
    assert seen("inference", run(1, SERVER, serves=True)) is None
    assert seen("inference", run(1, SERVER, serves=True), left_out=("GPU-b",)) == "GPU-a,GPU-c,GPU-d"


def test_without_a_driver_there_is_nothing_to_report() -> None:
    assert seen("trainer", run(2, SERVER), ()) is None
