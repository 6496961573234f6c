"""transformers.generate on LlamaForCausalLM, with its KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers


def load(folder: Path) -> Any:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.inference_mode()
def generate(model: Any, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[list[int]]:
    """The most probable tokens after prompts of one length. No token ends an answer."""
    tokens = torch.tensor(prompts)
    mask = torch.ones_like(tokens)
    whole = model.generate(
        tokens, attention_mask=mask, max_new_tokens=new_tokens, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    answers: list[list[int]] = whole[:, tokens.shape[1] :].tolist()
    return answers
