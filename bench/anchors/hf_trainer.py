"""Hugging Face's Trainer on LlamaForCausalLM, with logging, saving and the progress bar turned off."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import transformers
from torch import Tensor
from torch.utils.data import Dataset

from anchors import BETAS, CLIP_NORM, PEAK_LR, WEIGHT_DECAY, Anchor, Crops, Sizes


class _StepClock(transformers.TrainerCallback):
    """CPU-seconds from the end of one step to that of the next, so the Trainer's own loader and loop are included."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        if not self._began:  # the first step of a block; the time before it is setup, not training
            self._began = time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        ended = time.process_time()
        self.seconds.append(ended - self._began)
        self._began = ended

    def take(self) -> list[float]:
        seconds, self.seconds, self._began = self.seconds, [], 0.0
        return seconds


def make(sizes: Sizes, crops: Crops) -> Anchor:
    transformers.set_seed(0)
    transformers.utils.logging.set_verbosity_error()
    model = _model(sizes)
    clock = _StepClock()
    trainer: Any = None

    def run(steps: int) -> list[float]:
        # A Trainer trains once from start to end, so each block of steps is a separate training. The
        # optimizer is passed on; setup happens before the first step and is not counted.
        nonlocal trainer
        optimizer = None if trainer is None else trainer.optimizer
        trainer = _trainer(model, crops, steps, clock, optimizer)
        trainer.train()
        return clock.take()

    return Anchor("Hugging Face Trainer", sum(weight.numel() for weight in model.parameters()), run)


def _model(sizes: Sizes) -> Any:
    config: Any = transformers.LlamaConfig  # it accepts any keyword argument, but its types do not
    return transformers.LlamaForCausalLM(
        config(
            vocab_size=sizes.vocab_size,
            num_hidden_layers=sizes.layers,
            hidden_size=sizes.hidden_size,
            num_attention_heads=sizes.heads,
            num_key_value_heads=sizes.heads,
            intermediate_size=sizes.mlp_size,
            max_position_embeddings=sizes.ctx_tokens,
            tie_word_embeddings=True,
            use_cache=False,
            attn_implementation="sdpa",
        )
    )


class _Rows(Dataset[dict[str, Tensor]]):
    """The rows of the crops, each loaded when the Trainer's DataLoader takes it."""

    def __init__(self, crops: Crops, rows: int) -> None:
        self._crops, self._rows = Crops(crops.path, 1, crops.ctx_tokens), rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        tokens = self._crops.next().tokens[0]
        return {"input_ids": tokens, "labels": tokens}


def _trainer(model: Any, crops: Crops, steps: int, clock: _StepClock, optimizer: Any) -> Any:
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.gettempdir(),
        per_device_train_batch_size=crops.batch,
        max_steps=steps,
        learning_rate=PEAK_LR,
        adam_beta1=BETAS[0],
        adam_beta2=BETAS[1],
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=CLIP_NORM,
        optim="adamw_torch_fused",
        lr_scheduler_type="constant",
        use_cpu=True,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=_Rows(crops, steps * crops.batch),
        callbacks=[clock],
        optimizers=(optimizer, None),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer
