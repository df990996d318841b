"""A server that takes a large body slowly."""

from __future__ import annotations

import asyncio

from tests.client.faces import Face, faces
from tests.client.scripted import Step, listening


@faces
async def test_a_slow_upload_is_no_silence(face: Face) -> None:
    """A server may take a large body for longer than it may be silent afterwards."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(2.0)  # twice the silence
        await reader.readexactly(30_000_000)
        writer.write(Step().response)
        writer.close()

    async with listening(serve) as url, face(url, timeout_seconds=1.0) as client:
        assert await client.append("q", bytes(30_000_000)) == 0
