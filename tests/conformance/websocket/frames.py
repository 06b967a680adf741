"""Cases of the table `cases.tsv`, and the bytes that each writes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wsproto.connection import Connection
from wsproto.events import BytesMessage, TextMessage

OPCODES = {"cont": 0, "text": 1, "binary": 2, "close": 8, "ping": 9, "pong": 10}
# The same for every frame, so that a case always writes the same bytes.
MASK = bytes.fromhex("37fa213d")


@dataclass(frozen=True)
class Case:
    number: str
    chop: str
    # The extension that the client offers; empty: none.
    offer: str
    steps: list[list[str]]

    def ends_abruptly(self) -> bool:
        """True if the side that runs the case ends without a closing frame."""
        return self.steps[-1][0] == "end"

    def writes(self, connection: Connection, is_client: bool) -> list[bytes]:
        """Returns what the side that runs the case writes, piece by piece."""
        frames = [frame for step in self.steps for frame in _frames(step, connection, is_client)]
        if not self.ends_abruptly() and self.steps[-1][0] != "close":
            frames.append(_frame(OPCODES["close"], struct.pack("!H", 1000), is_client))
        if self.chop == "-":
            return frames
        whole = b"".join(frames)
        size = len(whole) if self.chop == "all" else int(self.chop)
        return [whole[start : start + size] for start in range(0, len(whole), size)]


def read_cases(path: Path) -> list[Case]:
    """Reads the table."""
    rows = [line.split("\t") for line in path.read_text().splitlines() if not line.startswith("#")]
    return [
        Case(number, chop, offer.removeprefix("-"), [step.split() for step in steps.split(" ; ")])
        for number, chop, offer, steps in rows
    ]


def _frames(step: list[str], connection: Connection, is_client: bool) -> Iterator[bytes]:
    match step:
        case ["end"]:
            pass
        case ["message", kind, payload, *options]:
            content = _payload(payload)
            for _ in range(_option(options, "x", 1)):
                message = TextMessage(content.decode()) if kind == "text" else BytesMessage(content)
                yield connection.send(message)
        case ["fragments", kind, size, payload]:
            yield from _fragments(OPCODES[kind], int(size), _payload(payload), is_client)
        case [opcode, payload, *options]:
            code = OPCODES[opcode] if opcode in OPCODES else int(opcode.removeprefix("op="))
            frame = _frame(
                code, _payload(payload), is_client, last="more" not in options, rsv=_option(options, "rsv=", 0)
            )
            yield from [frame] * _option(options, "x", 1)


def _fragments(opcode: int, size: int, content: bytes, is_client: bool) -> Iterator[bytes]:
    for start in range(0, len(content), size):
        last = start + size >= len(content)
        yield _frame(opcode if start == 0 else 0, content[start : start + size], is_client, last=last)


def _option(options: list[str], prefix: str, default: int) -> int:
    values = [option.removeprefix(prefix) for option in options if option.startswith(prefix)]
    return int(values[0]) if values else default


def _payload(token: str) -> bytes:
    """Returns the payload that a word of the table describes."""
    kind, _, value = token.partition(":")
    match kind:
        case "-":
            return b""
        case "text":
            return value.encode()
        case "hex":
            return bytes.fromhex(value)
        case "bytes":
            return b"\xfe" * int(value)
        case "json":
            return _document(int(value))
        case "code":
            code, _, reason = value.partition(":")
            return struct.pack("!H", int(code)) + (_payload(reason) if reason.startswith("*") else reason.encode())
    return b"*" * int(token.removeprefix("*"))


def _document(size: int) -> bytes:
    """Returns text that compresses as JSON does."""
    rows = (json.dumps({"id": number, "name": f"row {number * 7919 % 1009}", "ok": True}) for number in range(size))
    text = ""
    while len(text) < size:
        text += next(rows)
    return text[:size].encode()


def _frame(opcode: int, content: bytes, is_client: bool, last: bool = True, rsv: int = 0) -> bytes:
    """Returns a frame (RFC 6455, section 5.2)."""
    head = bytes([last << 7 | rsv << 4 | opcode])
    masked = is_client << 7
    if len(content) < 126:
        head += bytes([masked | len(content)])
    elif len(content) < 1 << 16:
        head += struct.pack("!BH", masked | 126, len(content))
    else:
        head += struct.pack("!BQ", masked | 127, len(content))
    return head + MASK + _masked(content) if is_client else head + content


def _masked(content: bytes) -> bytes:
    key = (MASK * (len(content) // len(MASK) + 1))[: len(content)]
    return (int.from_bytes(content) ^ int.from_bytes(key)).to_bytes(len(content))
