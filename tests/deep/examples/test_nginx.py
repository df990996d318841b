"""The nginx configuration of the examples, run by a real nginx in front of a real service."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.certificates import make_certificate
from tests.deep.examples.test_deploy import DEPLOY
from tests.serving import TIMEOUT_SECONDS, Process, free_port

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
TOKEN = "0123456789abcdef0123456789abcdef"
BODY_LIMIT = "    client_max_body_size 80m;\n"

pytestmark = [
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: nginx-light)"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
]

MAIN = """
daemon off; master_process off; pid {directory}/pid; error_log {directory}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy; fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;
    include {directory}/site.conf;
}}
"""


@dataclass
class Nginx:
    """nginx with the example in front of a service."""

    port: int
    cert: Path
    token: Path

    @property
    def host(self) -> str:
        return f"localhost:{self.port}"

    def connection(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.cert))
        return http.client.HTTPSConnection("localhost", self.port, timeout=TIMEOUT_SECONDS, context=context)

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """Send one request with the token; return status and body."""
        connection = self.connection()
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {TOKEN}", **headers})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def run(self, script: str) -> str:
        """Run a program with a client, `client`, in a process that trusts the certificate; return what it prints."""
        program = (
            "from mrecordlog_async.client import BlockingRecordLogClient\n"
            f"with BlockingRecordLogClient('https://{self.host}', token='{TOKEN}') as client:\n"
        ) + "".join(f"    {line}\n" for line in script.splitlines())
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "SSL_CERT_FILE": str(self.cert)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
        return done.stdout + done.stderr


@contextmanager
def nginx(directory: Path, *, example: str = "nginx.conf", body_limit: str = BODY_LIMIT) -> Iterator[Nginx]:
    """Run a service, and nginx with the example in front of it; only names, files, ports and tokens are replaced."""
    name = {"nginx.conf": "wal", "nginx-ingest.conf": "logs"}[example]
    cert, key = make_certificate(directory)
    token = directory / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with Process(directory / "wal", ["--token-file", str(token), "--allow-host", "wal.example.com"]) as service:
        here, site = Nginx(free_port(), cert, token), (DEPLOY / example).read_text()
        for old, new in (
            ("listen 443 ssl;", f"listen 127.0.0.1:{here.port} ssl;"),
            (f"/etc/nginx/{name}.example.com.pem", str(cert)),
            (f"/etc/nginx/{name}.example.com.key", str(key)),
            ("http://127.0.0.1:8080", f"http://127.0.0.1:{service.port}"),
            (BODY_LIMIT, body_limit),
        ):
            assert site.count(old) == 1
            site = site.replace(old, new)
        site = site.replace('"Bearer SERVICE_TOKEN"', f'"Bearer {TOKEN}"')
        (directory / "site.conf").write_text(site)
        (directory / "main.conf").write_text(MAIN.format(directory=directory))
        assert NGINX is not None
        command = [NGINX, "-p", str(directory), "-e", str(directory / "error.log"), "-c", str(directory / "main.conf")]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                wait_for(here.port, process)
                yield here
            finally:
                process.terminate()


def wait_for(port: int, process: subprocess.Popen[str]) -> None:
    """Wait until something listens at *port*."""
    while True:
        assert process.poll() is None, process.stderr and process.stderr.read()
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.01)
        else:
            return


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with nginx(tmp_path_factory.mktemp("nginx")) as running:
        yield running


def test_the_page_appends_through_nginx(proxy: Nginx) -> None:
    """A browser sends the page's origin, with the port that is not the usual one; other sites are refused."""
    assert b"<html" in proxy.request("GET", "/", Accept="text/html")[1]
    path = "/v1/queues/page/records?create=1"
    assert proxy.request("POST", path, b"a", Origin=f"https://{proxy.host}")[0] == 200
    assert proxy.request("POST", path, b"b", Origin="https://evil.example")[0] == 403
    assert proxy.request("GET", "/v1/queues/page", Host="evil.example")[0] == 421
    assert proxy.request("GET", "/v1/queues/page", Host="wal.example.com")[0] == 200
    assert proxy.request("GET", "/v1/queues/page", Authorization="")[0] == 401


def test_a_tail_is_not_held_back(proxy: Nginx) -> None:
    """A record arrives while the response goes on."""
    assert proxy.request("POST", "/v1/queues/tail/records?create=1", b"first")[0] == 200
    connection = proxy.connection()
    connection.request("GET", "/v1/queues/tail/tail?start=0&as=text", headers={"Authorization": f"Bearer {TOKEN}"})
    response = connection.getresponse()
    assert response.status == 200
    for payload in (b"second", b"third"):
        assert proxy.request("POST", "/v1/queues/tail/records", payload)[0] == 200
        while payload not in response.readline():  # an event that was held back would be waited for in vain
            pass
    connection.close()


def test_clients_and_producers_work_through_nginx(proxy: Nginx) -> None:
    """Batches of several MB, names that are encoded in the path, long polls, and consumers."""
    printed = proxy.run(
        "queue = 'a/b c%2F'\n"
        "print(client.append_records(queue, None, [bytes(3_000)] * 1_000, create=True))\n"
        "with client.producer(queue) as producer:\n"
        "    print(producer.append_records([bytes(4_000)] * 1_000))\n"
        "with client.consumer(queue, 'worker') as consumer:\n"
        "    batch = consumer.batch(max_records=5, max_wait=1.0)\n"
        "    print(consumer.acknowledge(batch))\n"
        "print(client.list_queues().count(queue), client.wait_for(queue, 1_999))\n"
    )
    assert printed.split() == ["999", "1999", "5", "1", "True"]


def test_a_body_that_nginx_refuses_is_said_to_be_refused_by_a_proxy(tmp_path: Path) -> None:
    """Without client_max_body_size a batch of 3 MB is refused; a producer sends it in halves."""
    with nginx(tmp_path, body_limit="") as proxy:
        printed = proxy.run("client.append_records('q', None, [bytes(3_000)] * 1_000, create=True)")
        assert printed.strip().endswith(
            "a proxy in front of the service refused the body as too large; send less at once, or raise the limit of "
            "the proxy (nginx: client_max_body_size) (413 unreadable)"
        )
        printed = proxy.run(
            "from concurrent.futures import ThreadPoolExecutor\n"
            "with client.producer('q', create=True) as producer, ThreadPoolExecutor(6) as pool:\n"
            "    print(*sorted(pool.map(producer.append_record, [bytes(600_000)] * 6)))\n"
        )
        assert printed.split() == ["0", "1", "2", "3", "4", "5"]


def test_the_token_of_a_sender_appends_to_one_queue_and_does_nothing_else(tmp_path: Path) -> None:
    """Whatever it puts into its path; and the service's own token is worth nothing in front of nginx."""
    path, sender = "/v1/queues/logs/records", {"Authorization": "Bearer SENDER_TOKEN"}
    with nginx(tmp_path, example="nginx-ingest.conf") as proxy:
        assert proxy.request("POST", f"{path}?create=1", b"a", **sender)[0] == 200
        assert proxy.request("POST", "/v1/queues/lo%67s/records", b"b", **sender)[0] == 200
        status, body = proxy.request("POST", "/v1/queues/x/../logs/records", b"c", **sender)
        assert (status, body[:14]) == (200, b'{"position":2,')
        for method in ("GET", "PUT", "DELETE"):
            assert proxy.request(method, path, b"", **sender)[0] in (403, 405)
        for other in (
            "/v1/queues",
            "/v1/queues/logs",
            "/v1/queues/other/records",
            f"{path}/",
            "/metrics",
            "/",
            "/v1/log",
        ):
            assert proxy.request("POST", other, b"x", **sender)[0] == 404
        assert proxy.request("POST", path, b"x")[0] == 401
        assert proxy.request("POST", path, b"x", Authorization="Bearer SENDER_TOKEN2")[0] == 401
        assert proxy.request("POST", path, b"x", Authorization="")[0] == 401
