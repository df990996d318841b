"""Every command on every kind of directory: the documented exit code, a sentence that says what to do, no traceback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from mrecordlog_async.cli.errors import DAMAGE, FAILED, FINE, INTERRUPTED, LOCKED, USAGE
from mrecordlog_async.cli.main import main
from mrecordlog_async.format import header
from mrecordlog_async.readonly import ReadOnlyLog
from mrecordlog_async.storage.directory import LogDirectory
from mrecordlog_async.storage.lock import take_lock
from tests import damage
from tests.cli.running import build, mrecordlog, three_queues
from tests.serving import Process

READING = (
    ("ls", "DIR"),
    ("cat", "DIR", "orders"),
    ("dump", "DIR"),
    ("top", "DIR", "--once"),
    ("verify", "DIR"),
    ("snapshot", "DIR", "NEW"),
    ("snapshot", "DIR", "NEW", "--verify"),
)
WRITING = (("truncate", "DIR", "orders", "35"), ("delete", "DIR", "orders"), ("load", "DIR", "LINES"))
REPAIR = (("repair", "DIR"), ("repair", "DIR", "--apply", "--to", "NEW"))
COMMANDS = (*READING, *WRITING, *REPAIR)


class Place:
    """One directory of each kind, made from the same log."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.intact = build(path / "intact", three_queues)
        self.new = path / "new"
        (path / "lines").write_text('{"queue": "orders", "text": "hello"}\n')

    def damaged(self) -> Path:
        copy = damage.copy(self.intact, self.path / "damaged")
        damage.flip_byte(damage.segments(copy)[1], 40_000)
        return copy

    def intact_log(self) -> Path:
        return self.intact

    def locked(self) -> Path:
        take_lock(LogDirectory.at(self.intact))  # until the process ends: the handle is not closed
        return self.intact

    def crate(self) -> Path:
        """Return a directory of Quickwit's Rust crate: one record that creates a queue."""
        path = self.path / "crate"
        path.mkdir()
        body = b"\x02" + bytes(8) + b"\x01\x00q"
        frame = struct.pack("<IHB", zlib.crc32(b"\x01" + body), len(body), 1) + body
        (path / "wal-00000000000000000000").write_bytes(frame.ljust(1 << 20, b"\0"))
        return path

    def older(self) -> Path:
        """Return a copy whose last segment says that it has format version 1."""
        copy = damage.copy(self.intact, self.path / "older")
        segment = damage.segments(copy)[-1]
        content = segment.read_bytes()
        fields = header.decode_header(content)
        with patch.object(header, "VERSION", 1):
            older = header.encode_header(fields)
        segment.write_bytes(older + content[header.HEADER_BYTES :])
        return copy

    def empty(self) -> Path:
        path = self.path / "empty"
        path.mkdir()
        return path

    def missing(self) -> Path:
        return self.path / "missing"

    def file(self) -> Path:
        path = self.path / "file"
        path.write_text("not a directory")
        return path


def codes(place: Place, directory: Path, capsys: pytest.CaptureFixture[str]) -> dict[tuple[str, ...], tuple[int, str]]:
    """Run every command on *directory*; return its exit code and what it printed to standard error."""
    found: dict[tuple[str, ...], tuple[int, str]] = {}
    for command in sorted(COMMANDS, key=lambda words: words[0] == "load"):  # it may create a log
        words = {"DIR": str(directory), "NEW": str(place.new), "LINES": str(place.path / "lines")}
        code = main([words.get(word, word) for word in command])
        found[command] = code, capsys.readouterr().err
        shutil.rmtree(place.new, ignore_errors=True)
    return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_damage_is_code_3_and_names_directory_and_next_command(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only what works around damage succeeds: a snapshot that is not verified, and a repair."""
    directory = place.damaged()
    found = codes(place, directory, capsys)
    fine = {("snapshot", "DIR", "NEW"), REPAIR[1]}
    assert {command for command, (code, _) in found.items() if code == FINE} == fine
    for command in {*COMMANDS} - fine - {("verify", "DIR"), REPAIR[0]}:
        code, text = found[command]
        assert code == DAMAGE and f"{directory} is damaged" in text and f"mrecordlog repair {directory}" in text
    assert found["verify", "DIR"][0] == found[REPAIR[0]][0] == DAMAGE


def test_nothing_is_left_of_a_snapshot_that_is_refused(place: Place) -> None:
    """A damaged log gets no snapshot with --verify, and the next attempt finds no leftovers."""
    assert main(["snapshot", str(place.damaged()), str(place.new), "--verify"]) == DAMAGE
    assert not place.new.exists() and not place.new.with_name("new.partial").exists()


def test_a_directory_of_the_crate_is_told_from_a_log(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command says what it is and which program fits. Nothing is changed."""
    directory = place.crate()
    before = damage.snapshot(directory)
    found = codes(place, directory, capsys)
    for command in COMMANDS:
        code, text = found[command]
        assert code == USAGE and f"{directory} holds files of Quickwit's Rust crate" in text, command
        assert "examples/import_quickwit.py" in text
    assert damage.snapshot(directory) == before


def test_a_log_of_another_format_version_is_not_called_damaged(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command says how to move it to this version; `repair` does not make an empty log of it."""
    directory = place.older()
    for command, (code, text) in codes(place, directory, capsys).items():
        assert code == USAGE, command
        assert f"{directory} cannot be read: format version 1" in text and "damage" not in text, command


@pytest.mark.parametrize("kind", [Place.empty, Place.missing, Place.file])
def test_no_log_is_code_1(place: Place, kind: Callable[[Place], Path], capsys: pytest.CaptureFixture[str]) -> None:
    """A typing error is not damage. `load` creates a log in an empty or missing directory."""
    directory = kind(place)
    for command, (code, text) in codes(place, directory, capsys).items():
        if command[0] == "load" and kind is not Place.file:
            assert code == FINE
            continue
        assert code == FAILED and str(directory) in text, command


@pytest.mark.parametrize("kind", [Place.empty, Place.missing, Place.intact_log])
def test_create_is_named_by_the_commands_that_have_it(
    place: Place, kind: Callable[[Place], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A log or a queue that does not exist: the message says which option creates it, if the command has one."""
    directory = kind(place)
    for command, has_create in (
        (("append", "DIR", "absent"), True),
        (("configure", "DIR", "absent", "--max-records", "5"), True),
        (("consume", "DIR", "absent", "--consumer", "c", "--once"), False),
        (("truncate", "DIR", "absent", "0"), False),
    ):
        ran = mrecordlog(*(str(directory) if word == "DIR" else word for word in command))
        assert ran.code == FAILED, command
        assert ("--create creates it" in ran.err) == has_create, command


@pytest.mark.parametrize("command", ["cat", "append", "truncate", "consume"])
def test_a_misspelt_queue_is_suggested(command: str, tmp_path: Path) -> None:
    """For a directory and for a service; a name that is near no other one is not."""
    log = build(tmp_path / "wal", three_queues)
    rest = {"truncate": ["0"], "consume": ["--consumer", "c", "--once"]}.get(command, [])
    assert "queue 'ordres' does not exist" in (ran := mrecordlog(command, log, "ordres", *rest)).err
    assert ran.err.rstrip().endswith("; did you mean 'orders'?")
    assert "did you mean" not in mrecordlog(command, log, "xyz", *rest).err
    with Process(log) as service:
        assert mrecordlog(command, service.address, "ordres", *rest).err == ran.err


def test_a_directory_that_is_refused_stays_as_it_is(tmp_path: Path) -> None:
    """A mistyped path leaves no LOCK in the directory of another program."""
    (tmp_path / "notes.txt").touch()
    assert "there is no log in this directory" in mrecordlog("truncate", tmp_path, "orders", 0).err
    assert "already contains 'notes.txt'" in mrecordlog("append", tmp_path, "orders", "--create").err
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_locked_directory_is_code_4_for_those_that_write(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the process and what to do; commands that only read are not held up."""
    directory = place.locked()
    found = codes(place, directory, capsys)
    for command in (*WRITING, *REPAIR):
        code, text = found[command]
        assert code == LOCKED and f"process {os.getpid()}" in text and "stop it" in text, command
        assert ("name its URL" in text) == (command not in REPAIR), command
    assert {found[command][0] for command in READING} == {FINE}


@pytest.mark.parametrize("command", [("snapshot", "DIR", "NEW"), REPAIR[1]])
def test_a_target_that_exists_is_code_2(
    place: Place, command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in the place of the new directory is reported before anything is read or written."""
    place.new.write_text("mine")
    directory = place.damaged() if command is REPAIR[1] else place.intact
    words = {"DIR": str(directory), "NEW": str(place.new)}
    assert main([words.get(word, word) for word in command]) == USAGE
    assert "not a directory" in capsys.readouterr().err
    assert place.new.read_text() == "mine"
    assert not place.new.with_name("new.partial").exists()


def test_load_names_the_line_that_the_log_refuses(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines before it are stored."""
    lines = [{"queue": "orders", "position": at, "text": "x"} for at in (40, 41, 3)]
    (place.path / "lines").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["load", str(place.intact), str(place.path / "lines")]) == FAILED
    assert "line 3: queue 'orders': position 3 is already taken" in capsys.readouterr().err
    with ReadOnlyLog.open(place.intact, keep_records=False) as log:
        assert log.summary()["orders"].next_position == 42


def test_closed_standard_streams_are_no_traceback(place: Place) -> None:
    """Without a standard output nothing begins; without a standard error only messages are missing."""
    command = f"{sys.executable} -m mrecordlog_async dump {place.intact}"
    ran = subprocess.run(["sh", "-c", f"{command} >&-"], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, "standard output is closed" in ran.stderr) == (USAGE, True)
    ran = subprocess.run(["sh", "-c", f"{command} 2>&- <&-"], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout.count("\n")) == (FINE, 14)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("started", [["-m", "mrecordlog_async"], [str(Path(sys.executable).with_name("mrecordlog"))]])
@pytest.mark.parametrize("module", ["crc32c", "argparse", "aiohttp"])
def test_ctrl_c_during_imports_is_no_traceback(tmp_path: Path, started: list[str], module: str) -> None:
    """The core, the command line and the service are imported inside what catches Ctrl-C."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # Takes the place of the real module, and blocks until the fifo is closed.
    (tmp_path / f"{module}.py").write_text(f"open({str(fifo)!r}).read()")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, *started, "serve", str(tmp_path / "wal"), "--port", "0"]
    with (
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process,
        fifo.open("w"),  # waits until the process opens it too: then it is in the import
    ):
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == INTERRUPTED


LOSING = """
import signal, time, weakref

class Freed: pass

freed = Freed()
kept = weakref.ref(freed, lambda _: signal.raise_signal(signal.SIGINT))
del freed
while True:
    time.sleep(1)
"""


@pytest.mark.usefixtures("interruptible")
def test_a_ctrl_c_that_python_loses_comes_again(tmp_path: Path) -> None:
    """It cannot raise in a callback of a weak reference, such as that which frees the lock of an imported module."""
    (tmp_path / "click.py").write_text(LOSING)  # takes the place of the real module
    command = [sys.executable, "-m", "mrecordlog_async", "ls", str(tmp_path / "wal")]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (INTERRUPTED, b"")


@pytest.mark.parametrize(
    "command", [("cat", "DIR", "orders"), ("dump", "DIR"), ("ls", "DIR"), ("top", "DIR", "--once")]
)
def test_a_full_disk_behind_standard_output_is_code_1(place: Place, command: tuple[str, ...]) -> None:
    """The message says that it is the output, not the log, even where a help text or an error has no room."""
    words = [word.replace("DIR", str(place.intact)) for word in command]
    with open("/dev/full", "w") as full:
        ran = buffering(words, stdout=full, stderr=subprocess.PIPE)
        assert ran.returncode == FAILED
        assert ran.stderr == b"mrecordlog: standard output: No space left on device; what was printed is incomplete\n"
        if command[0] == "ls":
            for each, code in ((["--help"], FAILED), (words, FAILED), (["no command"], USAGE)):
                assert buffering(each, stdout=full, stderr=full).returncode == code


def buffering(words: list[str], **streams: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command whose streams have buffers, as those of users do; Python writes what is in them when it ends."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run([sys.executable, "-m", "mrecordlog_async", *words], env=environment, **streams)


@pytest.mark.skipif(sys.platform == "darwin", reason="APFS has only names in UTF-8")
def test_a_path_that_is_not_utf_8_is_printed_as_it_is(place: Place) -> None:
    """The work is done, so the exit code is 0, however strict the encoding of standard output is."""
    target = os.fsencode(place.path) + b"/back\xff"
    ran = subprocess.run(
        [sys.executable, "-m", "mrecordlog_async", "snapshot", place.intact, target],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (FINE, b"")
    assert target in ran.stdout
    assert os.path.isdir(target)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1:strict"])
def test_a_name_that_the_locale_lacks_is_escaped(tmp_path: Path, encoding: str) -> None:
    """What was stored is reported with code 0, so that no script repeats it; a list does not end at such a name."""
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    directory = tmp_path / "wal"

    def run(*words: str) -> tuple[int, bytes, bytes]:
        command = [sys.executable, "-m", "mrecordlog_async", words[0], str(directory), *words[1:]]
        ran = subprocess.run(command, input=b"x", capture_output=True, env=environment, timeout=60)
        return ran.returncode, ran.stdout, ran.stderr

    assert run("append", "é\u6f22", "--create")[::2] == (FINE, b"")
    assert run("append", "z", "--create")[0] == FINE
    code, out, err = run("ls")
    assert (code, err, out.count(b"\n"), b"\\u6f22 " in out) == (FINE, b"", 3, True)


def test_append_to_nothing_names_the_switch(tmp_path: Path) -> None:
    """A log is created only on purpose."""
    ran = mrecordlog("append", tmp_path / "nowhere", "orders", stdin="x")
    assert (ran.code, "--create" in ran.err) == (FAILED, True)
