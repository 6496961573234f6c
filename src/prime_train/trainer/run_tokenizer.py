"""The tokenizer that belongs to a run directory: loads it, keeps a trained one there, and compares two runs'."""

from __future__ import annotations

from pathlib import Path

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.outside import MODEL_BYTES
from prime_train.core.rundir import RunDir
from prime_train.core.whole_folder import write_folder
from prime_train.spec import RunSpec
from prime_train.trainer.attempt import Attempt, read_run
from prime_train.trainer.chats.chat_tokenizer import load_chat_tokenizer
from prime_train.trainer.tokenizer import LoadedTokenizer, read_folder


def load_run_tokenizer(run: RunSpec, run_dir: RunDir) -> LoadedTokenizer:
    """The tokenizer of a run. One that was trained on the data is in the run's directory. Raises UserError."""
    if run.tokenizer.path is not None:
        return read_folder(Path(run.tokenizer.path))
    if run_dir.tokenizer.is_dir():
        return read_folder(run_dir.tokenizer)
    if run.run.kind != "pretrain":
        return load_chat_tokenizer(run).tokenizer
    from prime_train.trainer.data.text_tokenizer import load_tokenizer  # reads text, of which a run on rewards has none

    return load_tokenizer(run)


def keep_tokenizer(attempt: Attempt, tokenizer: LoadedTokenizer) -> None:
    """Copy a tokenizer that was trained on the data into the run's directory, on rank 0, once per tokenizer."""
    folder = attempt.run_dir.tokenizer
    if attempt.rank != 0 or attempt.run.tokenizer.path is not None:
        return
    content = {file.name: outside.read_bytes(file, MODEL_BYTES) for file in tokenizer.files}
    if any(_read(folder / name) != text for name, text in content.items()):
        with write_folder(folder, replaces=True) as beside:
            for name, text in content.items():
                (beside / name).write_bytes(text)


def _read(path: Path) -> bytes | None:
    """The content of a file of the run's tokenizer; None where there is no regular file of its size."""
    try:
        return outside.read_bytes(path, MODEL_BYTES, path.parent)
    except OSError:
        return None


def check_tokenizer(attempt: Attempt, tokenizer: LoadedTokenizer) -> None:
    """UserError where the run of `model.init_from` was trained on other tokens: sizes alone would not show it."""
    run = attempt.run
    if run.model.init_from is None or attempt.resume_step:
        return
    source = RunDir(Path(run.model.init_from))
    if load_run_tokenizer(read_run(source), source).fingerprint != tokenizer.fingerprint:
        raise UserError(
            what=f"the run {source.path.name} was trained with another tokenizer",
            where="tokenizer.path",
            why="its weights would take each token for another one",
            fix="take tokenizer.path out: the run then has the tokenizer of the other one",
        )
