"""Kills a run on audio again and again, and compares its losses with those of a run that is not killed.

`python -m tests.system.trainer.audio.kill_drill KILLS` prints one JSON line.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from prime_train import spec
from prime_train.checkpoints import layout
from prime_train.core.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.spec.audio import Audio, AudioEncoder, AudioProbe, Lejepa
from prime_train.trainer.audio.chirps import write_clips
from tests.unit.trainer import tiny

CLIPS, SECONDS = 40, 1.0
AUDIO = Audio(
    clip_s=0.4,
    frames=64,
    mels=32,
    encoder=AudioEncoder(layers=2, width=32, heads=2, registers=2),
    lejepa=Lejepa(views=2, slices=8, projector_width=16, projection=8),
    probe=AudioProbe(clips=4, neighbours=2),
)


def audio_run(folder: Path, max_steps: int, audio: Audio = AUDIO, **parts: Any) -> RunSpec:
    """A run on small clips, which it writes below `folder`; `parts` replaces whole sections."""
    clips = write_clips(folder, CLIPS, SECONDS)
    run = RunSpec(
        run=spec.Run(name="clips", kind="audio", max_steps=max_steps, seed=7),
        audio=audio,
        data=spec.Data(sources=(spec.Source(kind="audio", path=str(clips)),), loader_workers=1),
        batch=spec.Batch(micro_batch=2, global_batch=4),
        schedule=spec.Schedule(kind="constant", warmup_steps=2),
        optim=spec.Optim(lr=3e-3),
        checkpoint=spec.Checkpoint(interval_steps=2),
        eval=spec.Eval(interval_steps=5, held_out_ratio=0.2),
    )
    return replace(run, **parts)


def losses(run_dir: RunDir) -> dict[int, float]:
    """The loss of each step, in the order of the lines."""
    return {line["step"]: line["loss"] for line in tiny.metrics(run_dir)}


def newest_step(run_dir: RunDir) -> int:
    found = layout.newest_complete(run_dir.checkpoints)
    return 0 if found is None else found.step


def train_with_kills(run_dir: RunDir, kills: int, seed: int) -> int:
    """Train to the end, with so many kills before it at random moments; returns how many attempts there were."""
    draw = random.Random(seed)
    for number in range(1, kills + 1):
        resume_step = newest_step(run_dir)
        process = tiny.start(run_dir, number, resume_step)
        # In the set-up, or after up to three steps: in a step, in a save or in an evaluation.
        steps = draw.randint(0, 3)
        tiny.until(partial(_has_come, process, run_dir, number, resume_step + steps if steps else 0))
        tiny.kill(process)
    code, output = tiny.train(run_dir, kills + 1, newest_step(run_dir))
    assert code == 0, output
    return kills + 1


def _has_come(process: subprocess.Popen[str], run_dir: RunDir, number: int, step: int) -> bool:
    """Whether this attempt has made a step, or has ended; with step 0, whether it has begun."""
    own = run_dir.events / f"trainer-{number:03d}-rank0.jsonl"
    if process.poll() is not None or (not step and own.exists()):
        return True
    # Lines of an earlier attempt are dropped before this one says that it trains.
    if not own.exists() or '"name":"train"' not in own.read_text(encoding="utf-8"):
        return False
    lines = run_dir.metrics.read_text(encoding="utf-8").splitlines()
    return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=0) >= step


def main(kills: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        run = audio_run(Path(folder), max_steps=3 * kills)
        straight = tiny.prepare(Path(folder, "straight"), run)
        code, output = tiny.train(straight)
        assert code == 0, output
        killed = tiny.prepare(Path(folder, "killed"), run)
        train_with_kills(killed, kills, seed=1)
        one, other = losses(straight), losses(killed)
        different = sum(one[step] != other.get(step) for step in one)
    sys.stdout.write(json.dumps({"kills": kills, "steps": len(one), "different_losses": different}) + "\n")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
