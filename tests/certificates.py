"""Certificates that are made for a test."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path


def make_certificate(directory: Path, name: str = "localhost") -> tuple[Path, Path]:
    """Make a certificate for *name* and 127.0.0.1 that signs itself; return its file and that of its key."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = ["-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run([*command, *subject, *files], check=True, capture_output=True)
    return cert, key


def trusting(cert: Path) -> ssl.SSLContext:
    """Return the context of a client that trusts *cert*."""
    return ssl.create_default_context(cafile=str(cert))


def client_hello() -> bytes:
    """Return the first message of a TLS client."""
    sent = ssl.MemoryBIO()
    try:
        ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        return sent.read()
    raise AssertionError("a handshake needs two sides")
