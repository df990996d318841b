"""The service's certificate: read at the start, and again when its files change, so renewing it needs no restart."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from asyncio import sslproto

logger = logging.getLogger("mrecordlog_async.serve")

CHECK_SECONDS = 60.0
READ_BYTES = 32 * 1024
"""Bytes that asyncio reads of a TLS connection at a time: a buffer of this size for each one, 256 KiB by default."""


class Certificate:
    """A certificate with its key, and the context that new connections use."""

    def __init__(self, cert: str, key: str | None) -> None:
        """Read the files.

        Args:
            cert: PEM file of the certificate, followed by those of its issuers.
            key: PEM file of the private key; None if it is in *cert*.

        Raises:
            ValueError: A file cannot be read, or key and certificate do not belong together.
        """
        self._files = (cert, key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # TLS 1.2 or later
        self._seen = self._changed_at()
        try:
            self.context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "reason", None) or error.strerror or str(error)
            raise ValueError(f"TLS certificate {cert} with key {key or cert}: {reason}") from None

    async def watch(self) -> None:
        """Read the files again whenever they have changed, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await asyncio.to_thread(self.reload)

    def reload(self) -> None:
        """Read the files again if they have changed. One that is invalid is reported, and the one before it stays."""
        seen = self._changed_at()
        if seen == self._seen:
            return
        self._seen = seen
        cert, key = self._files
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)  # tried apart: half of it must not stay
            self.context.load_cert_chain(cert, key)
        except (OSError, ssl.SSLError) as error:
            logger.error("TLS certificate %s cannot be used: %s; the one before it is kept", cert, error)
        else:
            logger.info("TLS certificate %s has been read again", cert, extra={"facts": {"event": "certificate"}})

    def _changed_at(self) -> list[tuple[int, int]]:
        """Return when each file was changed, its owner and mode included, and its size; zeros if it is not there."""
        found = []
        for path in filter(None, self._files):
            try:
                status = os.stat(path)
                found.append((status.st_ctime_ns, status.st_size))  # clocks of file systems tick slowly
            except OSError:
                found.append((0, 0))
        return found


def use_small_buffers() -> None:
    """Have asyncio hold 32 KiB for each TLS connection of this process. uvloop uses no memory before it reads."""
    sslproto.SSLProtocol.max_size = READ_BYTES  # a class attribute, without an option
