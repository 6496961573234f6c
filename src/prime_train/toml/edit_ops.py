"""The basic edits of a TOML text: insert, replace, rename, remove. Does not check the result.

Every function returns the changed text, or None if it cannot make the change. They work on bytes, because the syntax
tree counts bytes. Comment lines and all other lines stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from prime_train.toml.document import KeyPath, dotted
from prime_train.toml.syntax_tree import Positions, Statement, TableHeader, positions


class ByteEdit(NamedTuple):
    """Replaces the bytes from `start` to `end` with `new`."""

    start: int
    end: int
    new: bytes


class Cut(NamedTuple):
    """The text without a removed statement, and the parts of that statement as written."""

    text: str
    value: str
    comment: str  # at the end of its last line
    above: tuple[str, ...]  # the comment lines that belong to it alone


def splice(source: bytes, changes: Iterable[ByteEdit]) -> str:
    for change in sorted(changes, reverse=True):
        source = source[: change.start] + change.new + source[change.end :]
    return source.decode()


def replace_value(text: str, path: KeyPath, written: str) -> str | None:
    """The text with another value for `path`. Comments inside the old value move to the lines above."""
    at = positions(text)
    found = at.find(path)
    if found is None:
        return None
    changes = [ByteEdit(found.value.start_byte, found.value.end_byte, written.encode())]
    comments = [node.text for node in at.comment_nodes(found.value)]
    return splice(at.source, [*changes, *_lines_above(at, found.value, comments)])


def rename_key(text: str, old: KeyPath, new: KeyPath, *, dots: bool = False) -> str | None:
    """The text with `old` renamed in place, within the same table or below the same inline table.

    With `dots` also to a table below the same one, as a dotted key.
    """
    at = positions(text)
    found = at.find(old)
    if found is None or not found.names:
        return None
    around = old[: len(old) - len(found.names)]
    inline = found.pair.parent.type not in ("document", "table", "table_array_element")
    if new[: len(around)] != around or not (dots or inline or new[:-1] == old[:-1]):
        return None
    return splice(at.source, [ByteEdit(found.key.start_byte, found.key.end_byte, dotted(new[len(around) :]).encode())])


def rename_headers(text: str, old: KeyPath, new: KeyPath) -> str | None:
    """The text with every [old], [old.below] and [[old]] line renamed."""
    at = positions(text)
    if not old or any(isinstance(part, int) for part in (old[-1], new[-1])):
        return None
    named = [header for path, header in at.headers.items() if path[: len(old)] == old]
    depth = len(_names(old))
    changes = []
    for header in named:
        key = header.node.children[1]
        changes.append(ByteEdit(key.start_byte, key.end_byte, dotted(_names(new) + header.names[depth:]).encode()))
    return splice(at.source, changes) if changes else None


def statements_below(text: str, path: KeyPath) -> list[KeyPath]:
    """The keys of the `key = value` lines for `path` and everything below it, in the order of the text."""
    at = positions(text)
    found = _lines_below(at, path)
    if not found and (inner := at.find(path)) is not None and inner.names:
        return [path]
    return [statement.path for statement in sorted(found, key=lambda statement: statement.pair.start_byte)]


def remove(text: str, path: KeyPath) -> str:
    """The text without `path`: its line, its headers and everything below, or its item in an inline table or array.

    Every comment stays: a comment at the end of a removed line gets its own line.
    """
    at = positions(text)
    headers = [header for below, header in at.headers.items() if below and below[: len(path)] == path]
    nodes = [header.node.children[0] for header in headers] + [line.pair for line in _lines_below(at, path)]
    if nodes:
        return splice(at.source, [_without_lines(at, node, keep_comments=True) for node in nodes])
    found = at.find(path)
    return text if found is None else splice(at.source, [_without_item(found)])


def cut_statement(text: str, path: KeyPath) -> Cut | None:
    """Removes the statement that sets `path`, and returns its parts."""
    at = positions(text)
    found = at.find(path)
    if found is None or not found.names:
        return None
    value = found.value.text.decode()
    if found.pair.parent.type not in ("document", "table", "table_array_element"):
        return Cut(splice(at.source, [_without_item(found)]), value, "", ())
    end = _line_end(at.source, found.value.end_byte)
    comment = at.source[found.value.end_byte : end].strip().decode()
    change = _without_lines(at, found.pair, keep_comments=False)
    above_from = _own_comments_start(at.source, change.start, end)
    above = at.source[above_from : change.start].decode().splitlines()
    left = splice(at.source, [change._replace(start=above_from)])
    return Cut(left, value, comment, tuple(line.strip() for line in above))


def insert(text: str, path: KeyPath, piece: Cut) -> str | None:
    """The text with `path` set to the piece's value, in its table, which is created if missing."""
    at = positions(text)
    for length in range(len(path) - 1, -1, -1):
        around, below = path[:length], path[length:]
        if any(isinstance(part, int) for part in below):
            return None
        header = at.headers.get(around)
        if header is not None:
            return _in_table(at, header, below, piece) if len(below) == 1 else _new_table(at, around, below, piece)
        found = at.find(around)
        if found is not None:
            return _in_inline_table(at, found, below, piece)
        dotted_lines = [line for line in _lines_below(at, around) if len(line.path) - len(line.names) < length]
        if dotted_lines:
            last = max(dotted_lines, key=lambda line: int(line.pair.start_byte))
            names = (*last.names[: len(last.names) - (len(last.path) - length)], *below)
            return _after(at, last.pair, dotted(names), piece)
        if any(known[:length] == around for known in at.headers if len(known) > length):
            return _new_table(at, around, below, piece)
    return None


def _in_table(at: Positions, header: TableHeader, below: KeyPath, piece: Cut) -> str:
    lines = at.statements(header).values()
    if lines:
        return _after(at, max(lines, key=lambda line: int(line.pair.start_byte)).pair, dotted(below), piece)
    if header.path:
        return _after(at, header.node.children[0], dotted(below), piece)
    first = min((known.node.start_byte for path, known in at.headers.items() if path), default=len(at.source))
    start = _line_start(at.source, first)
    newline = _newline(at.source)
    before = b"" if start == 0 or at.source[:start].endswith(b"\n") else newline
    return splice(at.source, [ByteEdit(start, start, before + _lines(piece, dotted(below), b"", newline) + newline)])


def _new_table(at: Positions, around: KeyPath, below: KeyPath, piece: Cut) -> str:
    """The text with a new [table], after everything in the parent table, or at the end of the text."""
    newline = _newline(at.source)
    names = dotted((*_names(around), *below[:-1]))
    table = f"[{names}]".encode() + newline + _lines(piece, dotted(below[-1:]), b"", newline)
    inside = [header for path, header in at.headers.items() if around and path[: len(around)] == around]
    if not inside:
        before = b"" if not at.source or at.source.endswith(b"\n") else newline
        blank = newline if at.source.strip() else b""
        return splice(at.source, [ByteEdit(len(at.source), len(at.source), before + blank + table)])
    last = max(inside, key=lambda header: int(header.node.start_byte))
    nodes = [last.node.children[0], *(line.pair for line in at.statements(last).values())]
    end = _line_end(at.source, _content_end(max(nodes, key=lambda node: int(node.start_byte))))
    while at.source[end : _line_end(at.source, end)].lstrip().startswith(b"#"):
        end = _line_end(at.source, end)
    before = b"" if at.source[:end].endswith(b"\n") else newline
    return splice(at.source, [ByteEdit(end, end, before + newline + table)])


def _in_inline_table(at: Positions, found: Statement, below: KeyPath, piece: Cut) -> str | None:
    if found.value.type != "inline_table":
        return None
    pairs = list(at.inner(found).values())
    new = f"{dotted(below)} = {piece.value}".encode()
    start, end = found.value.start_byte, found.value.end_byte
    if pairs:
        start = end = max(pair.value.end_byte for pair in pairs)
    changes = [ByteEdit(start, end, b", " + new if pairs else b"{ " + new + b" }")]
    comments = [*piece.above, *([piece.comment] if piece.comment else [])]
    return splice(at.source, [*changes, *_lines_above(at, found.value, [line.encode() for line in comments])])


def _lines_above(at: Positions, node: Any, comments: list[bytes]) -> list[ByteEdit]:
    """Puts comments that do not fit into a value on lines above its statement."""
    top = _outermost(node)
    start = _line_start(at.source, top.start_byte)
    indent, newline = at.source[start : top.start_byte], _newline(at.source)
    return [ByteEdit(start, start, b"".join(indent + line + newline for line in comments))] if comments else []


def _after(at: Positions, node: Any, key: str, piece: Cut) -> str:
    start, end = _line_start(at.source, node.start_byte), _line_end(at.source, _content_end(node))
    line = at.source[start:end]
    indent = line[: len(line) - len(line.lstrip(b" \t"))]
    newline = _newline(at.source)
    before = b"" if at.source[:end].endswith(b"\n") else newline
    return splice(at.source, [ByteEdit(end, end, before + _lines(piece, key, indent, newline))])


def _lines(piece: Cut, key: str, indent: bytes, newline: bytes) -> bytes:
    comment = f"  {piece.comment}" if piece.comment else ""
    lines = [*piece.above, f"{key} = {piece.value}{comment}"]
    return b"".join(indent + line.encode() + newline for line in lines)


def _without_lines(at: Positions, node: Any, *, keep_comments: bool) -> ByteEdit:
    """Removes the lines of a statement or header, and one of two blank lines that would become neighbours."""
    start, end = _line_start(at.source, node.start_byte), _line_end(at.source, _content_end(node))
    if keep_comments:
        inside = at.comment_nodes(node)
        last = max((comment.end_byte for comment in inside), default=_content_end(node))
        rest = at.source[last:end]
        comments = [comment.text for comment in inside]
        if b"#" in rest:
            comments.append(rest[rest.index(b"#") :].strip())
        if comments:
            indent = at.source[start : node.start_byte]
            newline = _newline(at.source)
            return ByteEdit(start, end, b"".join(indent + comment + newline for comment in comments))
    blank_before = start == 0 or not at.source[_line_start(at.source, start - 1) : start].strip()
    line_after = at.source[end : _line_end(at.source, end)]
    if blank_before and line_after and not line_after.strip():
        end += len(line_after)
    return ByteEdit(start, end, b"")


def _without_item(found: Statement) -> ByteEdit:
    """Removes one pair from an inline table, or one item from an array, with its comma."""
    container = found.pair.parent
    kinds = ("[", "]", ",", "{", "}", "comment", "ERROR")
    items = [node for node in container.children if node.type not in kinds]
    place = next(n for n, node in enumerate(items) if node.start_byte == found.pair.start_byte)
    if place + 1 < len(items):
        return ByteEdit(items[place].start_byte, items[place + 1].start_byte, b"")
    if place > 0:
        return ByteEdit(items[place - 1].end_byte, items[place].end_byte, b"")
    return ByteEdit(container.start_byte, container.end_byte, b"[]" if container.type == "array" else b"{}")


def _own_comments_start(source: bytes, start: int, end: int) -> int:
    """The start of the comment lines that belong to the statement alone: no other statement follows directly."""
    following = source[end : _line_end(source, end)].strip()
    if following and not following.startswith((b"#", b"[")):
        return start
    above = start
    while above > 0 and source[_line_start(source, above - 1) : above].lstrip().startswith(b"#"):
        above = _line_start(source, above - 1)
    return above if above > 0 else start  # a comment at the top belongs to the file


def _lines_below(at: Positions, path: KeyPath) -> list[Statement]:
    """The statements for `path` and everything below it, outside of inline tables."""
    found: list[Statement] = []
    for around, header in at.headers.items():
        shared = min(len(around), len(path))
        if around[:shared] == path[:shared]:
            lines = at.statements(header).values()
            found.extend(line for line in lines if line.path[: len(path)] == path)
    return found


def _outermost(node: Any) -> Any:
    """The top-level statement around a node."""
    while node.parent.type not in ("document", "table", "table_array_element"):
        node = node.parent
    return node


def _content_end(node: Any) -> int:
    """The end of a statement's value, because in the tree a comment after it is part of the statement."""
    children = [child for child in node.children if child.type != "comment"]
    end: int = children[-1].end_byte if node.type == "pair" and children else node.end_byte
    return end


def _names(path: KeyPath) -> KeyPath:
    """A path as a header writes it, without array indices."""
    return tuple(part for part in path if isinstance(part, str))


def _newline(source: bytes) -> bytes:
    return b"\r\n" if b"\r\n" in source else b"\n"


def _line_start(source: bytes, byte: int) -> int:
    return source.rfind(b"\n", 0, byte) + 1


def _line_end(source: bytes, byte: int) -> int:
    """The byte after the line break."""
    return source.find(b"\n", byte) + 1 or len(source)
