"""`prime-train data audio scan`: what a set of clips is made of, before a training reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from prime_train.cli.terminal.child import run_child
from prime_train.cli.terminal.options import AsJson, NoColor
from prime_train.cli.terminal.output import print_json
from prime_train.core.errors import ExitCode
from prime_train.views.text import sanitize

app = typer.Typer(rich_markup_mode=None)
audio = typer.Typer(rich_markup_mode=None)
app.add_typer(audio, name="audio", help="Sets of compressed clips.", no_args_is_help=True)
_CHILD = "prime_train.trainer.audio.scan_program"
_NAMED = 10  # of the broken rows


@audio.callback()
def _audio() -> None:
    """A callback, because typer would make a single command the group itself."""


@audio.command()
def scan(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A file, a folder with .arrow, .parquet or clips, or a dataset of the hub."
        ),
    ],
    subset: Annotated[
        str,
        typer.Option(
            "--subset", metavar="NAME", help="The folder with one configuration of the dataset.", show_default=False
        ),
    ] = "",
    split: Annotated[
        str, typer.Option("--split", metavar="NAME", help="The files of one split, where names have it.")
    ] = "train",
    clip_s: Annotated[float, typer.Option("--clip-s", min=0.1, metavar="SECONDS", help="Length of a crop.")] = 5.0,
    audio_field: Annotated[str, typer.Option("--audio-field", help="Column with the clips.")] = "audio",
    label_field: Annotated[str, typer.Option("--label-field", help="Column with the labels.")] = "label",
    no_labels: Annotated[bool, typer.Option("--no-labels", help="The clips have no labels.")] = False,
    decode: Annotated[bool, typer.Option("--decode", help="Decode a crop of each clip, not only the header.")] = False,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="FILE.png", help="Draw ten spectrograms.", show_default=False)
    ] = None,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Count rates, codecs, lengths, labels and broken clips of a set. Exit code 1 if a clip is broken.

    Examples:

      prime-train data audio scan ./clips --decode

      prime-train data audio scan train.arrow --label-field ebird_code --picture clips.png

      prime-train data audio scan samuelstevens/BirdSet --subset XCM --label-field ebird_code
    """
    request = {
        "path": _name_clips(path),
        "subset": subset,
        "split": split,
        "clip_s": clip_s,
        "audio_field": audio_field,
        "label_field": None if no_labels else label_field,
        "decode": decode,
        "picture": None if picture is None else str(picture.expanduser().absolute()),
    }
    found = run_child(_CHILD, request, does="reads the clips", extra="audio")
    if as_json:
        print_json({"version": 1, "path": request["path"]} | found)
    else:
        for label, text in _list_lines(found):
            typer.echo(f"{label:<12} {sanitize(text)}")
    if found["broken"]:
        raise typer.Exit(ExitCode.FINDINGS)


def _name_clips(path: str) -> str:
    """The whole path of what is here; else the text, which may name a dataset of the hub."""
    local = Path(path).expanduser()
    return str(local.absolute()) if local.exists() else path


def _list_lines(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "clips", f"{found['rows']:,} in {found['files']:,} files, {found['hours']:,.1f} h"
    if found["seconds"]:
        lengths = found["seconds"]
        yield "length", f"{lengths['0']:g} to {lengths['1']:g} s, half of them below {lengths['0.5']:g} s"
    if found["shorter_than_crop"]:
        yield "", f"{found['shorter_than_crop']:,} are shorter than a crop of {found['crop_s']:g} s, and are padded"
    if found["seconds"]:  # of clips that can be opened
        yield "rates", ", ".join(f"{int(rate):,} Hz: {count:,}" for rate, count in found["rates_hz"].items())
        yield "codecs", ", ".join(f"{codec}: {count:,}" for codec, count in found["codecs"].items())
        yield "channels", ", ".join(f"{number}: {count:,}" for number, count in found["channels"].items())
    if found["labels"]:
        rarest, commonest = found["rarest_label"], found["commonest_label"]
        yield "labels", f"{found['labels']:,}, from {rarest:,} to {commonest:,} clips each"
    if found["without_label"]:
        yield "", f"{found['without_label']:,} clips have no label"
    if found["absent"]:
        yield "", f"{found['absent']:,} in labels.csv are not there, the first is {found['absent_first']}"
    how = "a crop of each was decoded" if found["decoded"] else "by their headers; --decode reads more"
    yield "broken", f"{found['broken']:,} ({how})"
    for one in found["broken_rows"][:_NAMED]:
        yield "", f"{one['where']}: {one['why']}"
    if found["broken"] > _NAMED:
        yield "", f"and {found['broken'] - _NAMED:,} more: --json names {len(found['broken_rows']):,}"
    if found.get("picture"):
        yield "picture", found["picture"]
