"""Directories of a drain as Spark sees them: on a disk of this machine, or where Hadoop has them: hdfs://, s3a://, ….

A file of Hadoop's is durable when it is closed, and there are no locks: `create` alone decides who may write. It
renames a file that is complete, because a kill may leave one in any state.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

from mrecordlog_async.spark.checkpoints.identity import RefusedError
from mrecordlog_async.spark.checkpoints.lake import OWN, Lake, LockedError
from mrecordlog_async.spark.checkpoints.local_lake import LOCK_SECONDS, LocalLake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopLake:
    """A directory on a file system that Hadoop supports. It has no lock: `create` alone decides who may write."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self.path = path
        self._java, configuration = _java_of(session)
        self._fs = self._java.org.apache.hadoop.fs
        self._files = self._fs.Path(path).getFileSystem(configuration)

    def names(self, directory: str = "") -> list[str]:
        """List a directory; empty if it does not exist."""
        at = self._at(directory) if directory else self._fs.Path(self.path)
        return [each.getPath().getName() for each in self._files.listStatus(at)] if self._files.exists(at) else []

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, or None if it does not exist."""
        if not self._files.exists(self._at(name)):
            return None
        with closing(self._files.open(self._at(name))) as stream:
            return bytes(self._java.org.apache.commons.io.IOUtils.toByteArray(stream))

    def write(self, name: str, content: bytes) -> None:
        """Replace a file in one step."""
        self._put(name, content, replace=True)

    def create(self, name: str, content: bytes) -> bool:
        """Create a file; return False, and change nothing, if it exists. A kill leaves no part of it."""
        if self._files.exists(self._at(name)):
            return False
        try:
            self._put(name, content, replace=False)
        except Exception as error:  # py4j has one class for all Java exceptions
            if "AlreadyExists" in str(error):
                return False
            raise
        return True

    def remove(self, directory: str, names: Iterable[str]) -> None:
        """Remove files of *directory*, in this order."""
        for name in names:
            self._files.delete(self._at(f"{directory}/{name}"), False)

    def lock(self) -> None:
        """Do nothing: there are no locks here."""

    def sync(self) -> None:
        """Do nothing: a file that was closed is durable."""

    def forget_cached(self, name: str) -> None:
        """Do nothing: reads do not go through this machine's page cache."""

    def close(self) -> None:
        """Do nothing."""

    def _put(self, name: str, content: bytes, *, replace: bool) -> None:
        """Write a file next to its place, under a hidden name, and rename it: HDFS shows one that is being written."""
        directory, slash, base = name.rpartition("/")
        temporary, renames = self._at(f"{directory}{slash}.{base}.{secrets.token_hex(4)}"), self._fs.Options.Rename
        with closing(self._files.create(temporary, False)) as stream:
            stream.write(bytearray(content))
        options = self._java.java.lang.reflect.Array.newInstance(renames._java_lang_class, 1)  # noqa: SLF001  # py4j's name
        options[0] = renames.OVERWRITE if replace else renames.NONE
        try:
            self._fs.FileContext.getFileContext(self._files.getUri()).rename(temporary, self._at(name), options)
        except BaseException:
            self._files.delete(temporary, False)
            raise

    def _at(self, name: str) -> Any:
        return self._fs.Path(f"{self.path}/{name}")


class LakeFiles:
    """The file systems that output and checkpoint are on, as Spark sees them."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._java, self._configuration = _java_of(session)

    def is_local(self, path: str) -> bool:
        """Return whether *path* is on a disk of this machine."""
        files, _ = self._at(path)
        return str(files.getUri().getScheme()) == "file"

    def full_path(self, path: str) -> str:
        """Return the path of the directory that `open` opens; nothing is created."""
        files, at = self._at(path)
        address = files.makeQualified(at)
        return str(address.toUri().getPath() if self.is_local(path) else address.toString())

    def open(self, path: str) -> Lake:
        """Open the directory *path*; a local one is created if it is missing."""
        full = self.full_path(path)
        return LocalLake(full) if self.is_local(path) else HadoopLake(self._session, full)

    @contextmanager
    def locked(self, lakes: list[Lake]) -> Iterator[None]:
        """Hold the locks of *lakes*; raise RefusedError if another drain holds one.

        Java has its own lock: it writes the batches, and may run a moment longer than a driver that was killed.
        """
        with ExitStack() as held:
            for lake in {lake.path: lake for lake in lakes if isinstance(lake, LocalLake)}.values():
                try:
                    lake.lock()
                except LockedError as error:
                    raise RefusedError(f"another drain uses {lake.path} ({error}); stop it first") from None
                held.callback(self._lock_in_java(f"{lake.path}/{OWN}/lock-java").close)
            yield

    def _lock_in_java(self, path: str) -> Any:
        file = self._java.java.io.RandomAccessFile(path, "rw")
        deadline = time.monotonic() + LOCK_SECONDS
        while file.getChannel().tryLock() is None:
            if time.monotonic() >= deadline:
                file.close()
                raise RefusedError(
                    f"the Java process of another drain still writes to {path.removesuffix(f'/{OWN}/lock-java')}; it "
                    "ends soon after its driver: start again in a few seconds"
                )
            time.sleep(0.1)
        return file

    def _at(self, path: str) -> tuple[Any, Any]:
        at = self._java.org.apache.hadoop.fs.Path(path)
        return at.getFileSystem(self._configuration), at


def _java_of(session: SparkSession) -> tuple[Any, Any]:
    """Return Java's packages, and Hadoop's configuration. py4j has no types."""
    context: Any = session.sparkContext
    return context._jvm, context._jsc.hadoopConfiguration()  # noqa: SLF001  # pyspark has no public names for them
