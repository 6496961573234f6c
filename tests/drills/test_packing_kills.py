"""`ckpt compress` and `ckpt restore`, killed again and again: the checkpoint is always complete, and work goes on."""

import random
import signal
import subprocess
from pathlib import Path

import pytest

from prime_train.checkpoints import layout
from tests.system.checkpoints.test_archive import content
from tests.system.cli.test_ckpt import write_steps
from tests.unit.checkpoints.packing.test_planes import numbers
from tests.unit.cli.commands import PROGRAM, clean_environment, prime_train, wait_until


@pytest.mark.timeout(900)  # twelve starts of the command, on a busy machine
@pytest.mark.parametrize("command", ["compress", "restore"])
def test_kill_9_while_it_works_leaves_a_complete_checkpoint_that_goes_on(tmp_path: Path, command: str) -> None:
    run_dir = write_steps(tmp_path)
    folder = run_dir.checkpoint(50)
    folder.mkdir(parents=True)
    weights = numbers("f", 250_000)
    saved = {f"__{rank}_0.distcp": random.Random(rank).randbytes(3) + 8 * weights for rank in range(12)}
    saved[".metadata"] = b""
    for name, written in saved.items():
        (folder / name).write_bytes(written)
    layout.write_manifest(folder, 50)
    if command == "restore":
        assert prime_train("ckpt", "compress", "small", cwd=tmp_path).returncode == 0
    kills = 0
    while True:
        manifest = (folder / layout.MANIFEST).read_bytes()
        process = subprocess.Popen(
            [PROGRAM, "ckpt", command, "small"], cwd=tmp_path, env=clean_environment(), stderr=subprocess.DEVNULL
        )
        wait_until(lambda p=process, m=manifest: p.poll() is not None or (folder / layout.MANIFEST).read_bytes() != m)  # type: ignore[misc]
        process.send_signal(signal.SIGKILL)  # right after a file was packed, in the midst of the next
        ended = process.wait(60)
        assert layout.inspect(folder, hashes=True).problem == ""
        if ended == 0:
            break
        kills += 1
    assert kills >= 3
    if command == "compress":
        assert prime_train("ckpt", "restore", "small", cwd=tmp_path).returncode == 0
    assert content(folder) == saved
