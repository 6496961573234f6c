"""Reads the files of other programs: YAML and JSON, recognised by their keys, with the files that they point to.

A file that is not recognised is refused with what it is, where that is known. Nothing in a file is executed.
"""

from __future__ import annotations

import re

import tomli

from prime_train.config.foreign import recognise
from prime_train.config.foreign.document import read_documents
from prime_train.config.foreign.follow import follow
from prime_train.config.foreign.recognise import FileFormat, Other
from prime_train.config.foreign.values import (
    COMMAND_LINE,
    MOST_BYTES,
    SHELL_SUFFIXES,
    YAML_SUFFIXES,
    ForeignPart,
    open_values,
)
from prime_train.config.parsed_config import SYNTAX, Fault, Reading
from prime_train.core.errors import UserError
from prime_train.toml.document import Document

_TOML_LINE = re.compile(r"""(?m)^[ \t]*(?:\[{1,2}[\w."' -]+\]{1,2}[ \t]*(?:\#.*)?|[\w."'-]+[ \t]*=.*)$""")
_SHELL_LINE = re.compile(r"\A#!.*\b(?:ba|z|da|k)?sh\b|(?m:^#SBATCH\s)")
_HEAD_CHARS = 100_000  # directives of Slurm stand above the first command
_UNREADABLE = "the program cannot read the file either, and no other setting in it was checked"
_KNOWN = (
    "lint judges run.toml files, prime-rl files, [recipe] files, scripts that start JAX, and the configs of {programs}"
)


def read(text: str, path: str) -> Reading | None:
    """The reading of a text in the format of another program; None if it is not recognised."""
    if _is_script(text, path):
        return _read_script(text, path)
    if not recognise.has_words(text):
        return None
    documents = read_documents(text, path)
    parts = [part for document in documents if (part := _part_of(document)) is not None]
    parts += [inner for part in parts if part.format == "skypilot" for inner in _read_run(part)]
    faulty = next((document for document in documents if document.fault is not None), None)
    if faulty is not None and not parts:
        kind = recognise.recognise_lines(faulty)
        return _reading(kind.name, faulty, ()) if isinstance(kind, FileFormat) else None
    return _reading(parts[0].format, faulty or parts[0].document, tuple(parts)) if parts else None


def is_known(text: str, path: str) -> bool:
    """Whether `read` would recognise a text. Follows no file."""
    if _is_script(text, path):
        return bool(_read_parts(text, path))
    if not recognise.has_words(text):
        return False
    documents = read_documents(text, path)
    if any(_part_of(document) is not None for document in documents):
        return True
    faulty = next((document for document in documents if document.fault is not None), None)
    return faulty is not None and isinstance(recognise.recognise_lines(faulty), FileFormat)


def _read_script(text: str, path: str) -> Reading | None:
    """The reading of a launch script; its first part that has a program names the format."""
    parts = _read_parts(text, path, follows=True)
    if not parts:
        return None
    main = next((part.format for part in parts if part.start), parts[0].format)
    own = next(part.document for part in parts if part.document.path == path)
    reading = _reading(main, own, parts)
    return reading._replace(root="script")


def _read_parts(text: str, path: str, *, follows: bool = False) -> tuple[ForeignPart, ...]:
    from prime_train.config.foreign.scripts import read_parts  # here, because most configs are no scripts

    return read_parts(text, path, follows=follows)


def _read_run(task: ForeignPart) -> tuple[ForeignPart, ...]:
    from prime_train.config.foreign.task_run import read_run  # here, because most configs are no tasks

    return read_run(task)


def read_toml(document: Document) -> Reading | None:
    """The reading of a TOML document in the format of another program; None if it is not recognised."""
    part = _part_of(document)
    return None if part is None else _reading(part.format, document, (part,))


def _part_of(document: Document) -> ForeignPart | None:
    if document.fault is not None:
        return None
    kind = recognise.recognise(document.values, document.text)
    return make_part(kind, document) if isinstance(kind, FileFormat) else None


def make_part(kind: FileFormat, document: Document) -> ForeignPart:
    """The part of a whole document, with its values as the program reads them."""
    values = open_values(document.values, exponents=kind.exponents, references=kind.references)
    return ForeignPart(kind.name, values, document)


def _reading(format_: str, document: Document, parts: tuple[ForeignPart, ...]) -> Reading:
    followed = follow(parts)
    parts = (*parts, *followed.parts)
    others = list({part.document.path: part.document for part in parts}.values())
    others = [document, *(other for other in (*others, *followed.faulty) if other.path != document.path)]
    faults = tuple(
        Fault(SYNTAX, (), other.fault.what, other.fault.fix or "correct the line", why=_UNREADABLE, document=other)
        for other in others
        if other.fault is not None
    )
    return Reading(
        document,
        dialect=format_,
        generation="",
        root="config",
        run=None,
        faults=faults,
        keys={},
        all_fields=False,
        others=tuple(reversed(others)),
        foreign=parts,
    )


def _is_script(text: str, path: str) -> bool:
    return path.endswith(SHELL_SUFFIXES) or _SHELL_LINE.search(text[:_HEAD_CHARS]) is not None


# --- what is not recognised ----------------------------------------------------------------------


def is_toml(text: str) -> bool:
    """Whether a text is valid TOML. A large one is not parsed only to know it."""
    if len(text) > MOST_BYTES:
        return is_like_toml(text)
    try:
        tomli.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def is_like_toml(text: str) -> bool:
    """Whether a text that is not valid TOML was meant as TOML: it has a table's header or an assignment."""
    return not _is_script(text, "") and _TOML_LINE.search(text) is not None


def refuse(text: str, path: str) -> UserError:
    """The error for a text that no format fits."""
    programs = ", ".join(kind.title for kind in recognise.formats().values())
    where, what, why = path, "it is of no format that is known here", _KNOWN.format(programs=programs)
    fix = "name the config of the training; a training of another program can be described in a file with [recipe]"
    if not text.strip():
        what = "it is empty"
    elif len(text) > MOST_BYTES:
        what = f"it has {len(text)} characters, and a config has fewer than {MOST_BYTES}"
    elif _is_script(text, path):
        what, why = f"no training command that is known here is in the {_kind_of(path)}", _known_commands()
    else:
        kind, faulty = _look_closer(text, path)
        if kind is not None:
            what, fix = f"it is {kind.title}, and no format that is known here", kind.fix or fix
        elif faulty is not None and recognise.is_template(faulty):
            what = "it is a template, and no format that is known here"
            fix = "fill the template, and lint what comes out"
        elif faulty is not None and faulty.fault is not None:
            what = f"it is of no format that is known here, and cannot be read as YAML or JSON: {faulty.fault.what}"
            where = f"{path}:{faulty.fault.span.line}"
    return UserError(what, where, why, fix)


def _known_commands() -> str:
    from prime_train.registry.launchers import launchers, training_programs

    launched = ", ".join(" ".join(launcher.commands[0]) for launcher in launchers() if launcher.kind)
    programs = ", ".join(dict.fromkeys(program.format for program in training_programs()))
    return f"lint judges jobs of Slurm, and scripts that start {launched}, or a program of {programs}"


def _kind_of(path: str) -> str:
    return "command" if path == COMMAND_LINE else "shell script"


def _look_closer(text: str, path: str) -> tuple[Other | None, Document | None]:
    """(kind of file, document that cannot be read) of a YAML or JSON text."""
    documents = read_documents(text, path)
    for document in documents:
        kind = recognise.recognise(document.values, text) if document.fault is None else None
        if isinstance(kind, Other):
            return kind, None
    faulty = next((document for document in documents if document.fault is not None), None)
    if faulty is None or not path.endswith(YAML_SUFFIXES):
        return None, None
    kind = recognise.recognise_lines(faulty)
    return (kind, None) if isinstance(kind, Other) else (None, faulty)


def refuse_command(reading: Reading, command: str, fix: str = "") -> UserError:
    """The error of a command that needs a run, for a file of another program. `fix`: what takes the file instead."""
    formats = recognise.formats()
    title = formats[reading.dialect].title if reading.dialect in formats else reading.dialect
    path = reading.document.path
    return UserError(
        what=f"it is a config of {title}, and {command} cannot use it",
        where=path,
        why="its keys do not decide which run of prime-train it would be",
        fix=fix or f"prime-train lint {path} judges it; describe the training in a file with [recipe] to estimate it",
    )
