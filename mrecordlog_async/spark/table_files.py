"""The files of a table: on a disk of this machine, or in an object store that delta-rs knows (s3://, gs://, az://).

A disk needs care that a store does not: a file is durable once it, its directory and each new parent are synced.
Neither delta-rs nor Arrow syncs anything.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from mrecordlog_async.errors import RecordLogError
from mrecordlog_async.storage.os_filesystem import drop_cache, full_sync
from mrecordlog_async.support.paths import absolute

if TYPE_CHECKING:
    import pyarrow.fs

ENTRIES = "_delta_log"
"""The directory of a table's own log."""

MISREAD = "%\\"
"""Characters of a local path that delta-rs decodes: it would open another directory."""

LOOKS_AT_ONCE = 32
"""Requests to a store at a time: a file's size is one."""

WRITE_BUFFER_BYTES = 1 << 16
"""Without a buffer, a stream of delta-rs refuses bytes."""

STORE_PATIENCE = {"timeout": "30s", "connect_timeout": "10s"}
"""How long delta-rs waits for one response of a store, unless the user says otherwise."""


class NotSyncedError(RecordLogError):
    """A disk failed to sync: what was written may be lost, and asking again proves nothing."""


@dataclass(frozen=True)
class TableFiles:
    """The place of a table. Tasks get a copy.

    Attributes:
        address: Its path, or its address in a store.
        storage_options: Keys, region and endpoint of the store.
    """

    address: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not _has_scheme(self.address):  # a task has another working directory
            object.__setattr__(self, "address", absolute(self.address))

    def __reduce__(self) -> tuple[Any, ...]:
        return TableFiles, (self.address, dict(self.storage_options))

    @cached_property
    def path(self) -> str | None:
        """The table's path on this machine; None in a store."""
        if urlsplit(self.address).scheme == "file":  # its path may have a # or ?, which would end it in other addresses
            return unquote(re.sub(r"^file:(//[^/]*)?", "", self.address, flags=re.IGNORECASE))
        return None if _has_scheme(self.address) else self.address

    @property
    def uri(self) -> str:
        """What delta-rs opens: it knows S3 under one name, and Hadoop under three."""
        return self.path or re.sub(r"^s3[an]://", "s3://", self.address).rstrip("/")

    @property
    def is_misread(self) -> bool:
        """True if delta-rs would look for the table somewhere else."""
        return self.path is not None and bool(set(self.path) & set(MISREAD))

    @property
    def options(self) -> dict[str, str]:
        """The options of the store, for delta-rs."""
        return {} if self.path is not None else {**STORE_PATIENCE, **self.storage_options}

    @cached_property
    def system(self) -> pyarrow.fs.FileSystem:
        """The file system whose root is the table."""
        import pyarrow.fs

        if self.path is not None:
            return pyarrow.fs.SubTreeFileSystem(self.path, pyarrow.fs.LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return pyarrow.fs.PyFileSystem(DeltaStorageHandler(self.uri, self.options))

    # Reading.

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file, or None if it does not exist."""
        try:
            if self.path is not None:
                return Path(self.path, name).read_bytes()
            with self.system.open_input_file(name) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def names(self, directory: str) -> dict[str, float]:
        """Return the names in a directory and when each was written, in seconds since 1970; {} if it is missing."""
        import pyarrow.fs

        found = self.system.get_file_info(pyarrow.fs.FileSelector(directory, allow_not_found=True))
        return {each.base_name: (each.mtime_ns or 0) / 1e9 for each in found if each.base_name}

    def directories(self, directory: str) -> list[str]:
        """Return the names of the directories in a directory."""
        import pyarrow.fs

        selector = pyarrow.fs.FileSelector(directory, allow_not_found=True, recursive=self.path is None)
        below = [each.path.strip("/").removeprefix(f"{directory}/") for each in self.system.get_file_info(selector)]
        if self.path is None:  # a store has no directories, only names with slashes
            return sorted({each.partition("/")[0] for each in below if "/" in each})
        return sorted(each for each in below if Path(self.path, directory, each).is_dir())

    def missing(self, sizes: Mapping[str, int]) -> list[str]:
        """Return those of *sizes*, name → bytes, that are not there with their size."""
        names = list(sizes)
        if self.path is not None:
            found = [_size_on_disk(Path(self.path, name)) for name in names]
        else:
            # open_input_file would hold the GIL, and look at one file at a time.
            with ThreadPoolExecutor(LOOKS_AT_ONCE) as threads:
                found = list(threads.map(lambda name: self.system.get_file_info([name])[0].size, names))
        return [name for name, size in zip(names, found, strict=True) if size != sizes[name]]

    # Writing.

    @contextmanager
    def new_file(self, name: str) -> Iterator[Any]:
        """Open a new file for writing; at the end it is durable, except for its name on a disk (`sync_names`).

        Missing directories below the table's are created, but not the table's: it may be on a disk that is not mounted.
        """
        if self.path is None:
            with self.system.open_output_stream(name, buffer_size=WRITE_BUFFER_BYTES) as stream:
                yield stream
            return
        for each in reversed(Path(name).parents[:-1]):
            Path(self.path, each).mkdir(exist_ok=True)  # other tasks may create it at this moment
        with open(Path(self.path, name), "xb") as file:
            yield file
            file.flush()
            _sync(file.fileno(), file.name)

    def write(self, name: str, content: bytes) -> None:
        """Write a new file durably."""
        with self.new_file(name) as file:
            file.write(content)
        self.sync_names([name])

    def remove(self, names: Iterable[str]) -> None:
        """Delete files, those that exist."""
        for name in names:
            with suppress(FileNotFoundError):
                self.system.delete_file(name)

    def sync_names(self, names: Iterable[str]) -> None:
        """Make the names of new files durable, and those of the directories that they are in. Raises NotSyncedError."""
        if self.path is not None:
            for each in sorted({str(parent) for name in names for parent in Path(name).parents}, reverse=True):
                sync_path(Path(self.path, each))

    def sync(self, names: Sequence[str]) -> None:
        """Make files durable that something else wrote, with their names. Raises NotSyncedError."""
        if self.path is not None:
            for name in names:
                with suppress(FileNotFoundError):  # it has been summed up and deleted since
                    sync_path(Path(self.path, name))
            self.sync_names(names)

    def make_directory(self) -> None:
        """Create the table's directory and its missing parents, durably."""
        if self.path is None:
            return
        directory = Path(self.path)
        missing = [each for each in (directory, *directory.parents) if not each.exists()]
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
        # Those that exist may have been made by a drain that died before they were durable.
        for each in [*missing[::-1], directory]:
            with suppress(PermissionError):
                sync_path(each.parent)

    def forget_cached(self, directory: str) -> None:
        """Make the next read of the files in a directory come from the medium. Raises NotSyncedError."""
        if self.path is None:
            return
        sync_file_system(self.path)
        for entry in os.scandir(Path(self.path, directory)):
            if entry.is_file():
                with open(entry.path, "rb") as file:
                    drop_cache(file.fileno())


def _has_scheme(address: str) -> bool:
    scheme = urlsplit(address).scheme
    return scheme == "file" or (len(scheme) > 1 and "://" in address)


def _size_on_disk(path: Path) -> int | None:
    try:
        return os.stat(path).st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def sync_path(path: Path) -> None:
    """Sync a file, or the names in a directory. Raises NotSyncedError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        _sync(handle, str(path))
    finally:
        os.close(handle)


def _sync(handle: int, name: str) -> None:
    try:
        full_sync(handle)
    except OSError as error:
        raise _not_synced(name, error) from error


def _not_synced(name: str, error: OSError) -> NotSyncedError:
    return NotSyncedError(
        f"{name} could not be synced ({error.strerror}). Check the disk and start again: the start reads the newest "
        "entries of the table from the medium"
    )


def sync_file_system(path: str) -> None:
    """Sync the file system of *path*. Raises NotSyncedError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        syncfs(handle)
    except OSError as error:
        raise _not_synced(path, error) from error
    finally:
        os.close(handle)


def syncfs(handle: int) -> None:
    """Sync the file system of an open file to the medium. Raises OSError.

    Without syncfs, as on macOS, this is the best there is: sync(2) may return early, and reports no error.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "syncfs"):
        os.sync()
        full_sync(handle)
    elif library.syncfs(handle) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
