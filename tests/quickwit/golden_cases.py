"""The golden cases: calls to the Rust crate, the bytes that it wrote, and what it reports when it opens them.

`NAME.ops.txt` has the calls with the crate's results (its first lines describe the grammar), `NAME.wal.gz` the file
without its trailing zeros, `NAME.dump.txt` the file's size and what opening showed.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

from mrecordlog_async.quickwit.reader import read
from mrecordlog_async.quickwit.writer import CrateWriter
from tests.quickwit.memory import Memory, delete_queue, retained

GOLDEN = Path(__file__).parent / "golden"
NAMES = sorted(path.name.removesuffix(".ops.txt") for path in GOLDEN.glob("*.ops.txt"))


def golden_bytes(name: str) -> bytes:
    """Return the file that the crate wrote, without trailing zeros."""
    return gzip.decompress((GOLDEN / f"{name}.wal.gz").read_bytes())


def golden_dump(name: str) -> list[str]:
    """Return what the crate reports about the file, without the line about its size and hash."""
    return (GOLDEN / f"{name}.dump.txt").read_text().splitlines()[1:]


def golden_files(name: str) -> Memory:
    """Return the directory that the crate wrote. Two blocks of the zeros after its data are as good as all."""
    data = golden_bytes(name)
    return Memory({0: data + bytes(-len(data) % 32_768 + 65_536)})


def payload_of(text: str) -> bytes:
    """Return the payload with this description."""
    kind, _, rest = text.partition(":")
    if kind == "empty":
        return b""
    if kind == "hex":
        return bytes.fromhex(rest)
    if kind == "str":
        return rest.encode()
    if kind == "rep":
        byte, _, times = rest.partition("*")
        return bytes.fromhex(byte) * int(times)
    assert kind == "pat", text
    length, seed = map(int, rest.split(":"))
    return pattern(length, seed)


def pattern(length: int, seed: int) -> bytes:
    return bytes((seed + 31 * i + 17 * (i >> 8)) & 0xFF for i in range(length))


def queue_of(text: str) -> str:
    return "" if text == '""' else unquote(text)


@dataclass
class Replay:
    """Makes the calls of a case on files in memory, and keeps each result in the crate's format."""

    files: Memory = field(default_factory=Memory)
    writer: CrateWriter | None = None
    answers: list[str] = field(default_factory=list)

    def run(self, lines: Iterator[str]) -> None:
        self.writer = CrateWriter(self.files)
        for line in lines:
            if not line.startswith("#"):
                self.answers.append(self.do(line.split()))

    def do(self, words: list[str]) -> str:
        verb, arguments = words[0], words[1:]
        if verb in ("patch", "zero"):
            offset = int(arguments[1])
            data = bytes.fromhex(arguments[2]) if verb == "patch" else bytes(int(arguments[2]))
            self.files.write(int(arguments[0]), offset, data)
            return "ok"
        if verb == "reopen":
            return "ok"  # the crate continues where it was, and so does the writer
        try:
            return self.call(verb, queue_of(arguments[0]), arguments[1:])
        except KeyError:
            return "ERR AlreadyExists" if verb == "create" else f'ERR MissingQueue("{arguments[0]}")'
        except ValueError:
            return "ERR Past"

    def call(self, verb: str, queue: str, arguments: list[str]) -> str:
        assert self.writer is not None
        before = self.writer._offset
        answer = "ok"
        if verb == "create":
            self.writer.create_queue(queue)
        elif verb == "delete":
            delete_queue(self.writer, queue)
        elif verb == "truncate":
            answer += f" evicted={self.writer.truncate(queue, int(arguments[0]))}"
        elif verb == "fill":
            count, length, seed = map(int, arguments)
            for index in range(count):
                self.writer.append(queue, None, [pattern(length, seed + index)])
            answer += f" last={self.writer.state.queues[queue].next_position - 1}"
        else:
            assert verb in ("append", "append_many"), verb
            position = None if arguments[0] == "-" else int(arguments[0])
            last = self.writer.append(queue, position, [payload_of(text) for text in arguments[1:]])
            answer += f" last={'-' if last is None else last}"
        return f"{answer} bytes={self.writer._offset - before}"


def dump(files: Memory) -> list[str]:
    """Return the contents of a directory in the crate's format."""
    report, records = read(files), retained(files)
    warnings = sum(not finding.silent for finding in report.findings)
    lines = ["open ok", f"warnings {warnings}", f"queues {len(report.state.queues)}"]
    for name in sorted(report.state.queues):
        queue = report.state.queues[name]
        shown = encode_name(name)
        file = queue.first_file()
        lines.append(
            f"queue {shown} start={queue.first_position} last={queue.next_position - 1 if queue.next_position else '-'}"
            f" next={queue.next_position} file={'-' if file is None else file} records={len(queue.positions)}"
        )
        digest = size = 0
        for position, payload in records[name]:
            crc = zlib.crc32(payload)
            size += len(payload)
            digest = zlib.crc32(position.to_bytes(8, "little") + crc.to_bytes(4, "little"), digest)
            shown_payload = f" hex={payload.hex()}" if len(payload) <= 64 else ""
            lines.append(f"rec {position} len={len(payload)} crc32={crc:08x}{shown_payload}")
        lines.append(f"end {shown} bytes={size} digest={digest:08x}")
    return lines


def encode_name(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="-._~") if name else '""'
