"""Writes a model folder that vLLM serves: a Qwen3 of a hundred thousand random parameters, and a tokenizer of bytes.

python tiny_model.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

CTX_TOKENS = 512
END = "<|endoftext|>"


def main(folder: Path) -> None:
    torch.manual_seed(0)
    vocabulary = {letter: number for number, letter in enumerate([END, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    wrapped.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # vLLM 0.32 attends on a CPU with heads of 32 numbers and more
        max_position_embeddings=CTX_TOKENS,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
