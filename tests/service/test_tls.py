"""HTTPS: a real process with a certificate that is made for the test, and renewed while it runs."""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
from pathlib import Path

import aiohttp
import pytest

from mrecordlog_async.client import BlockingRecordLogClient, ServiceUnreachableError
from mrecordlog_async.service import tls
from mrecordlog_async.service.server import ServeSettings, serve
from mrecordlog_async.service.tls import Certificate
from tests.certificates import make_certificate
from tests.cli.running import mrecordlog
from tests.serving import Process

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")


async def names(port: int, cert: Path) -> str:
    """Return the name in the certificate that the service shows to a new connection."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context(cafile=str(cert)))
    subject = writer.get_extra_info("peercert")["subject"]
    writer.transport.abort()
    return str(dict(pair for (pair,) in subject)["commonName"])


def test_the_command_serves_https_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other commands reach it under its https:// URL; plain HTTP gets no response."""
    cert, key = make_certificate(tmp_path)
    with Process(tmp_path / "wal", ["--tls-cert", str(cert), "--tls-key", str(key)], scheme="https") as service:
        assert service.address == f"https://127.0.0.1:{service.port}"
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert mrecordlog("append", service.address, "q", "--create", stdin="over TLS").code == 0
        assert mrecordlog("cat", service.address, "q").out == "over TLS\n"
        assert mrecordlog("ls", f"http://127.0.0.1:{service.port}").code == 5
        assert service.stop()[0] == 0


def test_the_wrong_scheme_and_an_unknown_certificate_are_named(tmp_path: Path) -> None:
    """The commands and the blocking client say what to write instead, not how the handshake failed inside."""
    cert, key = make_certificate(tmp_path)
    untrusted = "self-signed certificate; to trust it, set SSL_CERT_FILE to the certificate of its authority"
    with Process(tmp_path / "wal", ["--tls-cert", str(cert), "--tls-key", str(key)], scheme="https") as service:
        _refuses(service.address, f"TLS failed: certificate verify failed: {untrusted}")
        ran = mrecordlog("ls", service.address.replace("https", "http"))
        assert ran.err.endswith("; if the service has a certificate, write https:// instead of http://\n")
    with Process(tmp_path / "plain", []) as service:
        reason = "TLS failed: the server responded without TLS; write http:// instead of https://"
        _refuses(service.address.replace("http", "https"), reason)


def _refuses(url: str, reason: str) -> None:
    ran = mrecordlog("ls", url)
    assert (ran.code, ran.err.splitlines()[-1]) == (5, f"mrecordlog: {url} did not succeed within 2 s: {reason}")
    with BlockingRecordLogClient(url, retry_seconds=0.0) as client, pytest.raises(ServiceUnreachableError) as refused:
        client.list_queues()
    assert refused.value.reason == reason


async def test_a_renewed_certificate_is_used_without_a_restart(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """New connections see it, open ones go on; one that is invalid is reported, and the one before it stays."""
    monkeypatch.setattr(tls, "CHECK_SECONDS", 0.01)
    caplog.set_level("INFO", "mrecordlog_async")
    cert, key = await asyncio.to_thread(make_certificate, tmp_path)
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    certificate = await asyncio.to_thread(Certificate, str(cert), str(key))
    settings = ServeSettings(str(directory), port=0, certificate=certificate)
    service = asyncio.create_task(serve(settings, on_listening=address.set_result))
    url = await address
    port = int(url.rpartition(":")[2])
    first = ssl.create_default_context(cafile=str(cert))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=first)) as session:
        while (await session.get(f"{url}/readyz")).status != 200:
            await asyncio.sleep(0.001)
        assert await names(port, cert) == "localhost"
        await asyncio.to_thread(make_certificate, tmp_path, "renewed.localhost")
        while "has been read again" not in caplog.text:
            await asyncio.sleep(0.001)
        assert await names(port, cert) == "renewed.localhost"
        assert (await session.get(f"{url}/healthz")).status == 200
        cert.write_text("half a certificate")
        while "the one before it is kept" not in caplog.text:
            await asyncio.sleep(0.001)
        assert (await session.get(f"{url}/healthz")).status == 200
    service.cancel()
    with pytest.raises(asyncio.CancelledError):
        await service


def test_a_certificate_is_read_again_after_any_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Even one that leaves the time of modification: another mode or owner, or a file with the time of its source."""
    caplog.set_level("INFO", "mrecordlog_async")
    cert, key = make_certificate(tmp_path)
    certificate = Certificate(str(cert), str(key))
    good, times = cert.read_bytes(), cert.stat()
    cert.write_text("half a certificate")
    certificate.reload()
    assert "the one before it is kept" in caplog.text
    half = cert.stat()
    cert.write_bytes(good)
    os.utime(cert, ns=(times.st_atime_ns, half.st_mtime_ns))
    certificate.reload()
    assert "has been read again" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--tls-cert", "{cert}"], "cert.pem with key"),
        (["--tls-cert", "{none}", "--tls-key", "{key}"], "No such file"),
        (["--tls-key", "{key}"], "--tls-key needs --tls-cert"),
        (["--tls-cert", "{cert}", "--tls-key", "{key}", "--uds", "/tmp/never"], "--tls-cert is for --host"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_a_usage_error(tmp_path: Path, arguments: list[str], told: str) -> None:
    """The service does not start, least of all without encryption."""
    cert, key = make_certificate(tmp_path)
    given = [one.format(cert=cert, key=key, none=tmp_path / "absent.pem") for one in arguments]
    done = mrecordlog("serve", tmp_path / "wal", "--port", "0", *given)
    assert done.code == 2
    assert told in done.err
