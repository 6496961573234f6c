"""Run by an interpreter that has the trainers: each line of standard input is a life of a run.

A life is a child of this process, which has imported the packages once. Lines of standard output: `pid`, `saving`,
`saved`, `ended`, and for a check of a checkpoint `loads`.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

_WIDTH, _ROWS, _SEED = 192, 64, 7


def report(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def train_hf(life: dict[str, Any]) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed
    from transformers.trainer_utils import get_last_checkpoint

    class ReportingTrainer(Trainer):
        def _save_checkpoint(self, *arguments: Any, **others: Any) -> None:
            report("saving", self.state.global_step)
            super()._save_checkpoint(*arguments, **others)
            report("saved", self.state.global_step)

    set_seed(_SEED)
    shape: dict[str, Any] = {
        "hidden_size": _WIDTH,
        "intermediate_size": 2 * _WIDTH,
        "num_hidden_layers": 2,
        "vocab_size": 2000,
    }
    model = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=4, num_key_value_heads=4))
    rows = [{"input_ids": (tokens := torch.randint(0, 2000, (8,))), "labels": tokens} for _ in range(_ROWS)]
    arguments = TrainingArguments(
        life["out"],
        max_steps=life["max_steps"],
        save_steps=2,
        save_total_limit=3,
        per_device_train_batch_size=2,
        logging_steps=100,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    # Its own rule: the highest number, without a look inside.
    ReportingTrainer(model, arguments, train_dataset=rows).train(
        resume_from_checkpoint=get_last_checkpoint(life["out"])
    )


def train_lightning(life: dict[str, Any]) -> None:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class ReportingCheckpoint(ModelCheckpoint):  # type: ignore[misc]  # lightning has no types here
        def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
            report("saving", trainer.global_step)
            super()._save_checkpoint(trainer, filepath)
            report("saved", trainer.global_step)

    class Net(lightning.LightningModule):  # type: ignore[misc]  # as above
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(8, 4 * _WIDTH), torch.nn.Linear(4 * _WIDTH, 4 * _WIDTH))

        def training_step(self, batch: Any, _index: int) -> Any:
            return self.layers(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    os.environ["TMPDIR"] = life["tmp"]
    import tempfile

    tempfile.tempdir = life["tmp"]
    lightning.seed_everything(_SEED, verbose=False)
    rows = torch.utils.data.TensorDataset(torch.randn(_ROWS, 8))
    saves = ReportingCheckpoint(dirpath=life["out"], every_n_train_steps=2, save_top_k=-1, save_last=True)
    trainer = lightning.Trainer(
        max_steps=life["max_steps"],
        accelerator="cpu",
        callbacks=[saves],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Net(), torch.utils.data.DataLoader(rows, batch_size=2), ckpt_path=life["resume"] or None)


def load(life: dict[str, Any]) -> None:
    """Load everything of a checkpoint with the packages themselves."""
    from safetensors.torch import load_file

    place = Path(life["path"])
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    for path in files:
        if path.suffix == ".safetensors":
            load_file(path)
        elif path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
            torch.load(path, weights_only=False)
    if place.is_dir():
        needed = {"trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors"}
        assert needed <= {path.name for path in files}
    report("loads")


_IMPORTS = {
    "hf": ("transformers.trainer", "transformers.models.llama.modeling_llama", "torch._dynamo", "accelerate"),
    "lightning": ("lightning.pytorch", "torch._dynamo"),
}
_KINDS = {"hf": train_hf, "lightning": train_lightning, "load": load}


def main() -> None:
    kind = sys.argv[1]
    torch.set_num_threads(1)
    for name in _IMPORTS[kind]:
        import_module(name)
    report("ready")
    for line in sys.stdin:
        life = json.loads(line)
        if not (pid := os.fork()):
            log = os.open(life["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(log, 2)
            code = 1
            try:
                _KINDS[life["kind"]](life)
                code = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stderr.flush()
                os._exit(code)
        report("pid", pid)
        _, status = os.waitpid(pid, 0)
        report("ended", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
