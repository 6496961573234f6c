"""Tries the first chats of local data as the trainer will read them, for `validate`. Writes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prime_train.core.errors import UserError
from prime_train.trainer.chats.chat import RowFault, read_row
from prime_train.trainer.chats.chat_tokenizer import read_chat_folder
from prime_train.trainer.chats.labels import label


def try_chats(
    folder: str, messages_field: str, rows: Iterable[tuple[str, Any]], until_s: float
) -> dict[str, str | int]:
    """The number of `chats` that were tried, and of the first that is refused `where`, `what`, `why` and `fix`.

    `folder` has tokenizer and template, `rows` are (place, row). Ends at `until_s` of the monotonic clock.
    """
    try:
        tokenizer = read_chat_folder(Path(folder))
    except UserError as error:
        return {"chats": 0, "where": error.where, "what": error.what, "why": error.why, "fix": error.fix}
    chats = 0
    for place, row in rows:
        try:
            label(read_row(row, messages_field), tokenizer)
        except RowFault as fault:
            return {"chats": chats, "where": place, "what": f"it is no chat: {fault}", "fix": fault.fix}
        except UserError as error:
            where = f"{place} with {error.where}"
            return {"chats": chats, "where": where, "what": error.what, "why": error.why, "fix": error.fix}
        chats += 1
        if time.monotonic() > until_s:
            break
    return {"chats": chats}
