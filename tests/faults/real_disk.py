"""Power cuts on real file systems: `sudo python -m tests.faults.real_disk --rounds 100 --file-system xfs [--gather]`.

Each round runs a process that appends and truncates in a log of small segments, which it recycles, on a mounted image.
At a random moment the file system is shut down without writing its journal, as a power cut does. Then the image is
mounted again, and the log must hold every acknowledged append, and no record that was truncated, with its own bytes.
The same log continues in the next round. Needs root, loop devices, and mkfs.

With `--gather` the log retains several times its memory, so segments are gathered and leave memory all the time. It is
opened by the indexes of their files, and once more with memory for everything. With `--kill` only the process dies.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import os
import random
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mrecordlog_async import Limits, MultiRecordLog

IMAGE_BYTES = 400 << 20
SEGMENT_BYTES = 256 << 10
KEPT_RECORDS = {False: 12, True: 500}  # and with segments that are gathered
LIMITS = {False: Limits(), True: Limits(memory_bytes=1 << 20, beyond_memory="disk")}
LINES = {False: 60, True: 300}
"""The power is cut after at most this many lines that the writer prints."""
SHUTDOWN = 0x8004587D  # XFS_IOC_GOINGDOWN, which ext4 knows as EXT4_IOC_SHUTDOWN
WITHOUT_JOURNAL = 2
MAKE = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}


def payload(position: int) -> bytes:
    """Return the record that belongs at *position*; every third is larger than a block."""
    chance = random.Random(position)
    return chance.randbytes(chance.choice([60, 3_000, 40_000]))


async def write(directory: str, gather: bool) -> None:
    """Append and truncate until the disk fails; print each position that was acknowledged."""
    kept = KEPT_RECORDS[gather]
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES, limits=LIMITS[gather]) as log:
        await log.create_queue("q", exist_ok=True)
        print("opened", flush=True)
        while True:
            position = log.next_position("q")
            tasks = [log.append_record("q", at, payload(at)) for at in range(position, position + 3)]
            await asyncio.gather(*tasks)
            print("appended", position + 2, flush=True)
            if position > kept:
                await log.truncate("q", position - kept)
                print("truncated", position - kept, flush=True)


@contextlib.contextmanager
def image(kind: str) -> Iterator[tuple[Path, Path]]:
    """Yield an image file with a file system of *kind*, and a directory to mount it on.

    Raises OSError or CalledProcessError where that is impossible.
    """
    with tempfile.TemporaryDirectory(prefix="power-cut-") as path:
        file, mount = Path(path, "image"), Path(path, "mount")
        mount.mkdir()
        with file.open("wb") as made:
            made.truncate(IMAGE_BYTES)
        subprocess.run([*MAKE[kind], str(file)], check=True, capture_output=True)
        yield file, mount


@contextlib.contextmanager
def mounted(file: Path, mount: Path) -> Iterator[None]:
    """Mount the image for as long as the context lasts."""
    subprocess.run(["mount", "-o", "loop", str(file), str(mount)], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(mount)], check=True, capture_output=True)


def cut_power(mount: Path) -> None:
    """Shut the file system down: nothing that it holds in memory reaches the image any more."""
    handle = os.open(mount, os.O_RDONLY)
    try:
        fcntl.ioctl(handle, SHUTDOWN, struct.pack("I", WITHOUT_JOURNAL))
    finally:
        os.close(handle)


def write_and_cut(mount: Path, lines: int, *, gather: bool, kill: bool) -> tuple[int, int]:
    """Run a writer, and cut the power after some *lines*, or *kill* it.

    Returns the last positions that it reported as stored, and as removed.
    """
    command = [sys.executable, "-m", "tests.faults.real_disk", "--write", str(mount / "wal")]
    command += ["--gather"] if gather else []
    appended = truncated = -1
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for number, line in enumerate(process.stdout):
            if number == lines:
                if not kill:
                    cut_power(mount)
                process.kill()
            word, _, position = line.partition(" ")
            appended = int(position) if word == "appended" else appended
            truncated = int(position) if word == "truncated" else truncated
    return appended, truncated


async def check(directory: Path, appended: int, truncated: int, limits: Limits) -> int:
    """Open the log and raise AssertionError unless it keeps what was reported; return its last segment's number."""
    async with MultiRecordLog.open(directory, segment_bytes=SEGMENT_BYTES, create=False, limits=limits) as log:
        first, stop = log.first_position("q"), log.next_position("q")
        assert stop > appended, f"position {appended} was acknowledged, and the log ends at {stop}"
        assert first > truncated, f"position {truncated} was truncated, and the log begins at {first}"
        found = [record async for record in log.read("q")]
        assert [position for position, _ in found] == list(range(first, stop))
        for position, stored in found:
            assert bytes(stored) == payload(position), f"position {position} holds something else"
        return log.segments[-1]


def run_rounds(kind: str, rounds: int, seed: int, *, gather: bool = False, kill: bool = False) -> int:
    """Cut the power *rounds* times; return how many segments the log has had. Raises AssertionError."""
    chance, last, at_least, gathered = random.Random(seed), 0, -1, 0
    with image(kind) as (file, mount):
        for _ in range(rounds):
            with mounted(file, mount):
                appended, truncated = write_and_cut(mount, chance.randrange(2, LINES[gather]), gather=gather, kill=kill)
            with mounted(file, mount):
                gathered += len(list(mount.glob("wal/*.runs")))
                at_least = max(at_least, appended)
                for limits in dict.fromkeys((LIMITS[gather], Limits())):
                    last = asyncio.run(check(mount / "wal", at_least, truncated, limits))
    assert gathered or not gather, "no segment was gathered"
    return last


def main() -> int:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file-system", choices=MAKE, default="ext4")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--gather", action="store_true", help="with little memory")
    parser.add_argument("--kill", action="store_true", help="kill the process, and leave the power on")
    parser.add_argument("--write", metavar="DIR", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        asyncio.run(write(arguments.write, arguments.gather))
    segments = run_rounds(
        arguments.file_system, arguments.rounds, arguments.seed, gather=arguments.gather, kill=arguments.kill
    )
    what = f"{arguments.rounds} {'kills' if arguments.kill else 'power cuts'} on {arguments.file_system}"
    print(f"{what}, {segments} segments: nothing acknowledged was lost")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
