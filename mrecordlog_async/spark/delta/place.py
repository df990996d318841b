"""The place of a table: a disk of this machine, or an object store that delta-rs knows (s3://, gs://, az://, …).

A disk needs care that an object store does not: a file is durable once it, its directory and each new parent are
synced. delta-rs never syncs, and Spark does not either.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from mrecordlog_async.spark.checkpoints.local_lake import LocalLake, sync_directory, sync_file
from mrecordlog_async.support.paths import absolute

if TYPE_CHECKING:
    import pyarrow.fs

LOG = "_delta_log"

MISREAD = "%\\"
"""Characters of a local path that delta-rs decodes: it would open another directory."""


def local_path(address: str) -> str | None:
    """Return the path of a table on this machine; None for an object store."""
    parts = urlsplit(address)
    if parts.scheme == "file":  # its path may have a # or ?, which would end it in other addresses
        return unquote(re.sub(r"^file:(//[^/]*)?", "", address, flags=re.IGNORECASE))
    return None if len(parts.scheme) > 1 and "://" in address else absolute(address)


def _of_store(address: str) -> str:
    """Return an address in an object store as delta-rs spells it: Hadoop has other names for S3."""
    return re.sub(r"^s3[an]://", "s3://", address).rstrip("/")


@dataclass(frozen=True, slots=True)
class TablePlace:
    """A table's address, and the options that its object store needs (keys, region, endpoint)."""

    address: str
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def path(self) -> str | None:
        """The table's path on this machine; None in an object store."""
        return local_path(self.address)

    @property
    def uri(self) -> str:
        """URI that delta-rs opens."""
        return self.path or self.address

    @property
    def is_misread(self) -> bool:
        """True if delta-rs would look for the table somewhere else."""
        return self.path is not None and bool(set(self.path) & set(MISREAD))

    def holds(self, address: str) -> bool:
        """Return whether *address* is that of the table, or of something below it, even through a link."""
        path, given = self.path, local_path(address)
        if path is not None and given is not None:
            return Path(os.path.realpath(given)).is_relative_to(os.path.realpath(path))
        return path is given and f"{_of_store(address)}/".startswith(f"{_of_store(self.address)}/")

    @contextmanager
    def new_file(self, name: str) -> Iterator[Any]:
        """Open a new file for writing; at the end it is durable, except for its name on a disk (`sync_names`).

        Missing directories below the table's are created, but not the table's: it may be on a disk that is not mounted.
        """
        if self.path is None:
            with self._objects().open_output_stream(name) as stream:
                yield stream
            return
        for each in reversed(Path(name).parents[:-1]):
            Path(self.path, each).mkdir(exist_ok=True)  # other tasks may create it at this moment
        with open(Path(self.path, name), "xb") as file:
            yield file
            file.flush()
            sync_file(file.fileno(), file.name)

    def sync_names(self, names: Iterable[str]) -> None:
        """Make the names of new files durable, and those of the directories that they are in."""
        if self.path is None:
            return
        for each in {parent for name in names for parent in Path(name).parents}:
            sync_directory(Path(self.path, each))

    def sync(self) -> None:
        """Make everything durable that was written to the table, by whatever wrote it. Raises SyncFailedError."""
        if self.path is not None:
            with closing(LocalLake(self.path)) as lake:
                lake.sync()

    def sizes(self, names: list[str]) -> dict[str, tuple[int, float]]:
        """Return name → (size in bytes, seconds since 1970 of the last change) of those files that exist."""
        if self.path is None:
            infos = self._objects().get_file_info(names)
            return {
                name: (info.size, (info.mtime_ns or 0) / 1e9)
                for name, info in zip(names, infos, strict=True)
                if info.is_file
            }
        found = {}
        for name in names:
            try:
                status = os.stat(Path(self.path, name))
            except FileNotFoundError:
                continue
            found[name] = (status.st_size, status.st_mtime)
        return found

    @contextmanager
    def opened(self, name: str) -> Iterator[Any]:
        """Open a file of the table for reading."""
        if self.path is None:
            with self._objects().open_input_file(name) as file:
                yield file
            return
        with open(Path(self.path, name), "rb") as file:
            yield file

    def read(self, name: str) -> bytes | None:
        """Return the bytes of a file of the table, or None if it does not exist."""
        try:
            with self.opened(name) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def names(self, directory: str = "") -> list[str]:
        """List a directory of the table; empty if it does not exist."""
        if self.path is not None:
            try:
                return os.listdir(Path(self.path, directory))
            except FileNotFoundError:
                return []
        import pyarrow.fs

        found = self._objects().get_file_info(pyarrow.fs.FileSelector(directory, allow_not_found=True))
        return [name for each in found if (name := each.base_name)]

    def is_link(self, name: str) -> bool:
        """Return whether a file or directory of the table is a link; no object store has any."""
        return self.path is not None and Path(self.path, name).is_symlink()

    def remove(self, names: Iterable[str]) -> None:
        """Delete files of the table, those that exist."""
        if self.path is not None:
            for name in names:
                Path(self.path, name).unlink(missing_ok=True)
            return
        objects = self._objects()
        for name in names:
            with suppress(FileNotFoundError):
                objects.delete_file(name)

    def _objects(self) -> pyarrow.fs.PyFileSystem:
        import pyarrow.fs
        from deltalake.fs import DeltaStorageHandler

        handler = DeltaStorageHandler(self.uri, dict(self.storage_options))
        return pyarrow.fs.PyFileSystem(handler)
