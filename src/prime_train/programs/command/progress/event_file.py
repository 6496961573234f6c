"""Reads event files of TensorBoard: steps and scalars, each record checked by two checksums. Pure.

A record: length (8 bytes, little-endian), CRC, the event, CRC. A CRC is CRC-32C, masked.
Source: TensorFlow, core/lib/io/record_writer.h and core/lib/hash/crc32c.h; tensorboard, compat/proto/event.proto and
summary.proto: Event {1: wall_time, 2: step, 5: summary}, Summary {1: value}, Value {1: tag, 2: simple_value, 8:
tensor}, TensorProto {1: dtype, 4: tensor_content, 5: float_val}.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from prime_train.programs.command.progress.marks import MOST_STEPS, ProgressMark
from prime_train.registry.trainers import TrainerFile

_HEAD_BYTES, _CRC_BYTES = 12, 4
_LARGEST = 256 * 1024  # a larger record holds images or text, and is passed over
_MASK = 0xA282EAD8
_POLYNOMIAL = 0x82F63B78
_FLOAT, _VARINT, _I64, _BYTES, _I32 = 1, 0, 1, 2, 5


def _make_table() -> tuple[int, ...]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        table.append(value)
    return tuple(table)


_TABLE = _make_table()


def masked_crc(data: bytes) -> int:
    """The checksum of TensorBoard's records: CRC-32C, rotated by 15 bits, plus a constant."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


class EventFileReader:
    """Reads a growing event file. After a wrong checksum nothing more is read: no later record can be found."""

    def __init__(self, file: TrainerFile) -> None:
        self._file = file
        self._rest = bytearray()
        self._skip_bytes = 0  # of a record that is passed over
        self.unreadable = 0  # 1 after a wrong checksum

    def feed(self, data: bytes) -> tuple[ProgressMark, ...]:
        if self.unreadable:
            return ()
        self._rest += data
        marks: list[ProgressMark] = []
        while (event := self._take()) is not None:
            marks += self._read(event)
        return tuple(marks)

    def finish(self) -> tuple[ProgressMark, ...]:
        """Nothing: a record that is cut was not written completely."""
        return ()

    def _take(self) -> bytes | None:
        """The next event; empty for one that is passed over; None if the bytes do not suffice, or are damaged."""
        if self._skip_bytes:
            skipped = min(self._skip_bytes, len(self._rest))
            del self._rest[:skipped]
            self._skip_bytes -= skipped
        if len(self._rest) < _HEAD_BYTES or self.unreadable:
            return None
        length, crc = struct.unpack_from("<QI", self._rest)
        if masked_crc(bytes(self._rest[:8])) != crc:
            self._give_up()
            return None
        if length > _LARGEST:
            del self._rest[:_HEAD_BYTES]
            self._skip_bytes = length + _CRC_BYTES
            return b""
        end = _HEAD_BYTES + length
        if len(self._rest) < end + _CRC_BYTES:
            return None
        event = bytes(self._rest[_HEAD_BYTES:end])
        if masked_crc(event) != struct.unpack_from("<I", self._rest, end)[0]:
            self._give_up()
            return None
        del self._rest[: end + _CRC_BYTES]
        return event

    def _give_up(self) -> None:
        self.unreadable = 1
        self._rest.clear()

    def _read(self, event: bytes) -> Iterator[ProgressMark]:
        """One mark for an event with a scalar; none for the head of the file, text and images."""
        step = 0
        scalars: dict[str, float] = {}
        try:
            for number, value in _fields(event):
                if number == 2 and isinstance(value, int):
                    step = value
                elif number == 5 and isinstance(value, bytes):
                    scalars |= dict(_scalars(value))
        except ValueError:
            return
        if not scalars or not 0 <= step <= MOST_STEPS:
            return
        loss = next((scalars[tag] for tag in self._file.loss if tag in scalars), None)
        yield ProgressMark("step", step + self._file.offset, loss=loss, unit=self._file.unit)


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    """Tag and value of each scalar of a summary."""
    for number, value in _fields(summary):
        if number != 1 or not isinstance(value, bytes):
            continue
        fields = dict(_fields(value))
        tag, simple, tensor = fields.get(1), fields.get(2), fields.get(8)
        found = simple if isinstance(simple, float) else _tensor_scalar(tensor) if isinstance(tensor, bytes) else None
        if isinstance(tag, bytes) and found is not None:
            yield tag.decode("utf-8", "replace"), found


def _tensor_scalar(tensor: bytes) -> float | None:
    """The only number of a tensor of 32-bit floats; None for any other tensor."""
    fields = dict(_fields(tensor))
    if fields.get(1) != _FLOAT:
        return None
    for content in (fields.get(4), fields.get(5)):
        if isinstance(content, bytes) and len(content) == 4:
            return float(struct.unpack("<f", content)[0])
    single = fields.get(5)
    return single if isinstance(single, float) else None


def _fields(message: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Number and value of each field of a protobuf message. Raises ValueError for bytes that are none."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, form = key >> 3, key & 7
        if form == _VARINT:
            value, place = _varint(message, place)
            yield number, value
        elif form == _BYTES:
            length, place = _varint(message, place)
            if length > len(message) - place:
                raise ValueError("a field is longer than its message")
            yield number, message[place : place + length]
            place += length
        elif form in (_I64, _I32):
            size, letter = (8, "<d") if form == _I64 else (4, "<f")
            if size > len(message) - place:
                raise ValueError("a number is cut")
            yield number, float(struct.unpack_from(letter, message, place)[0])
            place += size
        else:
            raise ValueError(f"no field has the form {form}")


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """A whole number of 7 bits a byte, and the place behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise ValueError("a whole number is cut")
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a whole number has more than 70 bits")
