"""The indexed data of Megatron, where it is there: how often a training goes through it. Reads no byte of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prime_train.config.foreign.follow import find_file
from prime_train.config.foreign.values import ForeignPart
from prime_train.config.parsed_config import Fault, Reading
from prime_train.core.findings import Severity
from prime_train.rules.rule import file_rule

_LEAST_BYTES = 2  # of a token: a vocabulary of up to 65,500 has 16 bits, a larger one 32
_MOST_EPOCHS = 4  # arXiv 2305.16264: up to four, repeated data is nearly as good as other data


@file_rule("MCO012", Severity.WARNING)
def more_tokens_than_the_data(reading: Reading) -> Iterator[Fault]:
    """A Megatron training goes through its data at most four times.

    Megatron repeats the data without a word until it has --train-iters, and builds the index for all of it at the start

    One --data-path is judged if its .bin is there; a token takes at least two bytes of it.

    Source: megatron/core/datasets/gpt_dataset.py, _get_num_epochs; Megatron-LM#176; arXiv 2305.16264.

    Bad:
        # file job.sh
        torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \\
            --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size 256 \\
            --train-iters 500000 --lr 1e-4 --data-path text_document --tokenizer-type GPT2BPETokenizer --bf16
        # file text_document.bin
        a few bytes
    Good:
        # file job.sh
        torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \\
            --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size 256 \\
            --train-iters 500000 --lr 1e-4 --data-path elsewhere_document --tokenizer-type GPT2BPETokenizer --bf16
    """
    for part in reading.foreign or ():
        if part.format != "megatron" or part.moved:
            continue
        wanted, has = _wanted_tokens(part), _most_tokens(part)
        if wanted is not None and has is not None and wanted > _MOST_EPOCHS * has:
            what = f"{wanted:,} tokens are trained on, and the data has at most {has:,}"
            fix = "--train-iters for the epochs that are meant, or more data"
            yield Fault("MCO012", (*part.at, "train_iters"), what, fix, document=part.document)


def _wanted_tokens(part: ForeignPart) -> int | None:
    numbers = [part.values.get(key) for key in ("train_iters", "global_batch_size", "seq_length")]
    product = 1
    for number in numbers:
        if type(number) is not int or number < 1:
            return None
        product *= number
    return product


def _most_tokens(part: ForeignPart) -> int | None:
    prefix = part.values.get("data_path")
    path = find_file(f"{prefix}.bin", part.document.path) if isinstance(prefix, str) else None
    try:
        return None if path is None else Path(path).stat().st_size // _LEAST_BYTES
    except OSError:
        return None
