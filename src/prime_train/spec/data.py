"""[data] and its sources. Values only; as run.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from prime_train.spec.annotations import Doc, Fraction, Ge, MinLen, NotNegative, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source of text."""

    kind: Annotated[
        Literal["python-stdlib", "files", "hf-dataset", "tokens", "demonstrations"],
        Doc(
            "`python-stdlib`: the source of the running interpreter's standard library; `files`: local .txt, "
            ".jsonl or .parquet; `hf-dataset`: a Hugging Face dataset by name or local folder; `tokens`: local .bin "
            "of llm.c or .npy, written by the tokenizer of tokenizer.path, with its end-of-text token between "
            'documents; `demonstrations`: solved tasks of [[tasks]], with run.kind = "sft".'
        ),
    ]
    path: Annotated[
        str | None, Doc("`files`, `tokens`: a file, a folder or a glob. `hf-dataset`: the name or a folder.")
    ] = None
    subset: Annotated[str | None, Doc("`hf-dataset`: the configuration of the dataset.")] = None
    split: Annotated[str, Doc("`hf-dataset`: the split to train on.")] = "train"
    text_field: Annotated[str, Doc("Column or key with the text of a document.")] = "text"
    messages_field: Annotated[
        str,
        Doc(
            '`run.kind = "sft"`: column or key with the list of messages of a chat. Without it a document has `prompt` '
            "and `completion`."
        ),
    ] = "messages"
    count: Annotated[Positive, Doc("`demonstrations`: number of solved tasks.")] = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """The training text and its sequences."""

    sources: Annotated[tuple[Source, ...], MinLen(1), Doc("The sources of text.")]
    sampling_probs: Annotated[
        tuple[Fraction, ...] | None,
        Doc("One probability per source, with the sum 1; unset = in proportion to the numbers of documents."),
    ] = None
    sampling_unit: Annotated[
        Literal["documents", "tokens"],
        Doc(
            "What sampling_probs count. `tokens`: each source has its part of all tokens, whatever the lengths of its "
            "documents are, at every moment to within two documents."
        ),
    ] = "documents"
    document_start: Annotated[
        Literal["none", "eos"],
        Doc(
            "`eos`: the end-of-text token precedes each document and each of eval.prompts, so that first tokens are "
            "predicted and an empty prompt is continued as a document begins."
        ),
    ] = "none"
    ctx_tokens: Annotated[int, Ge(8), Doc("Tokens of a training sequence.")] = 512
    pack_buffer_docs: Annotated[Positive, Doc("Number of documents that are packed together, best fit first.")] = 1024
    loader_workers: Annotated[
        NotNegative | Literal["auto"],
        Doc(
            "Processes that tokenise and pack in advance; 0 = the trainer does it; `auto` = 1.5 times what the trainer "
            "uses, as measured in its first 20 steps."
        ),
    ] = 1

    @property
    def planned_workers(self) -> int:
        """The number of workers before it is measured: `auto` counts as 4."""
        return 4 if self.loader_workers == "auto" else self.loader_workers
