"""Functions that change the text of training documents. Imports what data.allowed_transforms names, and nothing else.

A transformation has a version, which is the hash of the file of its module. The tokens of changed documents are cached
under name and version, and a position in the stream has both. So a buffer is the same for any number of workers and
after a resume, and a file that was edited in between is refused. What the file itself imports is not seen.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, NoReturn

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.trainer.data.tables import Documents
from prime_train.trainer.failure import first_line

_FIELD = "data.allowed_transforms"


class Transform(NamedTuple):
    """A function that takes the text of a document and returns another one, the same for the same text."""

    name: str  # "module:function"
    version: str
    function: Callable[[str], str]


Transforms = tuple[Transform, ...]


def load_transforms(names: Iterable[str]) -> dict[str, Transform]:
    """The transformations by name. Imports their modules. Raises UserError for a name that is no function."""
    return {name: _load(name) for name in names}


def _load(name: str) -> Transform:
    module, _, function = name.partition(":")
    folder = os.getcwd()  # noqa: PTH109 - as text, as the path of modules has it
    if folder not in sys.path:
        # The last one, so that no file of the folder stands in for a library.
        sys.path.append(folder)
    try:
        imported = importlib.import_module(module)
        found = getattr(imported, function)
        source = outside.read_bytes(Path(str(imported.__file__)), outside.MODEL_BYTES)
    except (Exception, SystemExit) as error:  # the module is code of the user, and may raise anything
        why = f"Python looks for it in the environment and in {folder}"
        fix = "correct the name or the module: `module:function`, where the module is a file or a package"
        raise UserError(f"{name}: {type(error).__name__}: {first_line(error)}", _FIELD, why, fix) from error
    if not callable(found):
        why = "a transformation is called with the text of a document"
        raise UserError(f"{name} is no function", _FIELD, why, "name a function of the module")
    return Transform(name, hashlib.sha256(source).hexdigest()[:16], found)


def choose(allowed: Mapping[str, Transform], names: Iterable[str]) -> Transforms:
    """The transformations of these names. Raises UserError for one that the config does not allow."""
    return tuple(allowed[name] if name in allowed else _refuse_name(name, allowed) for name in names)


def restore(allowed: Mapping[str, Transform], saved: Iterable[Sequence[str]]) -> Transforms:
    """The transformations of a position, each (name, version). Raises UserError where one is not as it was."""
    found = []
    for name, version in saved:
        (one,) = choose(allowed, (name,))
        if one.version != version:
            what = f"the file of {name} is another one than at the checkpoint"
            why = "the run would continue with other text than before"
            fix = (
                "put the file back; write the changed function into another file, and name that one in data.transforms"
            )
            raise UserError(what, "the data position in the checkpoint", why, fix)
        found.append(one)
    return tuple(found)


def _refuse_name(name: str, allowed: Mapping[str, Transform]) -> NoReturn:
    what = f"{name} is not one of {', '.join(allowed) or 'none'}"
    why = f"only code that the config names in {_FIELD} is imported"
    raise UserError(what, "data.transforms", why, f'{_FIELD} = ["{name}"] and a start of the run, or take it out')


def change_documents(documents: Documents, transforms: Transforms, name: str) -> Documents:
    """The documents with changed texts. `name`: of their source. Reading one raises UserError where it fails."""

    def read(indices: Sequence[int]) -> list[str]:
        texts = zip(indices, documents.texts(indices), strict=True)
        return [change(text, transforms, f"document {index + 1:,} of {name}") for index, text in texts]

    return replace(documents, texts=read)


def change(text: str, transforms: Transforms, place: str) -> str:
    """The text after each of the transformations. `place`: of the document, for the error of one that fails."""
    for one in transforms:
        try:
            text = one.function(text)
            # A text with half a character would fail in the tokenizer, which knows no name of a function.
            text.encode()
        except (Exception, SystemExit) as error:  # the function is code of the user, and may raise anything
            what = f"{one.name} failed: {type(error).__name__}: {first_line(error)}"
            why = "a transformation takes each document, and returns a text that is UTF-8"
            fix = (
                "take it out of data.transforms, or correct it in a file of another name, as a resume keeps the former"
            )
            raise UserError(what, place, why, fix) from error
    return text
