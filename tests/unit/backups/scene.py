"""Checkpoints and buckets for the tests of backups."""

from __future__ import annotations

import random
from pathlib import Path

from prime_train.backups import inventory
from prime_train.backups.inventory import StoredBackup
from prime_train.backups.push import Upload, prepare
from prime_train.backups.source import Hashes
from prime_train.backups.store import Store, open_store
from prime_train.checkpoints import layout
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.programs.prime_rl.run_directory import locate_places
from prime_train.spec.supervision import Backup
from tests.fakes.prime_rl_launcher.standin import metadata

RUN = "small-run"


def write_step(root: Path, step: int, size_bytes: int = 200_000) -> Path:
    """A complete checkpoint of the bundled trainer, whose content depends on its step alone."""
    folder = root / "checkpoints" / f"step_{step}"
    (folder / "rank").mkdir(parents=True)
    drawn = random.Random(step)
    (folder / "model.distcp").write_bytes(drawn.randbytes(size_bytes))
    (folder / "rank" / "0.pt").write_bytes(drawn.randbytes(1000) * 20)
    (folder / "empty").write_bytes(b"")
    (folder / ".metadata").write_bytes(metadata({}))
    layout.write_manifest(folder, step)
    return folder


def places(root: Path) -> StepPlaces:
    return StepPlaces(root, (root / "checkpoints",))


def write_prime_rl_step(root: Path, step: int) -> Path:
    """A complete checkpoint of prime-rl before 2026-08: trainer, orchestrator, exported weights and a broadcast."""
    drawn = random.Random(step)
    trainer = root / "checkpoints" / f"step_{step}"
    files = {
        trainer / "trainer" / "__0_0.distcp": drawn.randbytes(50_000),
        trainer / "trainer" / ".metadata": metadata({}),
        root / "run_default" / "checkpoints" / f"step_{step}" / "orchestrator" / "progress.pt": drawn.randbytes(99),
        root / "weights" / f"step_{step}" / "model.safetensors": drawn.randbytes(9_000),
        root / "weights" / f"step_{step}" / "STABLE": b"",
    }
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return trainer


def prime_rl_places(root: Path) -> StepPlaces:
    return locate_places(root, orchestrated=True)


def local_backup(bucket: Path, **keys: object) -> Backup:
    bucket.mkdir(parents=True, exist_ok=True)
    return Backup(provider="local", bucket=str(bucket), prefix="team", **keys)  # type: ignore[arg-type]


def local_store(bucket: Path, **keys: object) -> Store:
    return open_store(local_backup(bucket, **keys))


def upload(store: Store, root: Path, found: StepPlaces | None = None) -> Upload:
    return prepare(store, RUN, found or places(root), Hashes(root / "backup" / "hashes.json"))


def list_backups(store: Store) -> list[StoredBackup]:
    """The backups of the run of these tests, which is one of the bundled trainer."""
    return inventory.list_backups(store, RUN, places(Path("/nowhere")))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
