"""The deployment files use only settings and routes that the service has."""

from __future__ import annotations

import argparse
import http.client
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mrecordlog_async.cli.settings import SETTINGS, add_settings, gather
from tests.serving import Process

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"


def arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_settings(parser)
    return parser.parse_args(given)


def test_the_toml_file_is_read() -> None:
    """Every key is a setting, and nearly every setting is shown."""
    values = gather(arguments("--config", str(DEPLOY / "mrecordlog.toml")), {})
    assert (values["memory_bytes"], values["drain_seconds"]) == (2 * 1024**3, 20.0)
    shown = set(re.findall(r"^#? ?(\w+) = ", (DEPLOY / "mrecordlog.toml").read_text(), re.MULTILINE))
    left_out = {"uds", "segment_bytes", "pending_bytes", "queues", "bodies_bytes", "sending_bytes"}
    assert shown | left_out == {setting.name for setting in SETTINGS}


@pytest.mark.parametrize("file", ["mrecordlog.service", "Dockerfile", "kubernetes.yaml"])
def test_variables_and_flags_in_service_files_are_settings(file: str) -> None:
    """A renamed setting breaks this before it breaks a deployment."""
    text = (DEPLOY / file).read_text()
    uncommented = "\n".join(line for line in text.splitlines() if not line.strip().startswith("#"))
    named = set(re.findall(r"MRECORDLOG_(\w+)", uncommented))
    assert {name.lower() for name in named} <= {setting.name for setting in SETTINGS}
    flags = set(re.findall(r'"--([a-z-]+)"', uncommented)) | set(re.findall(r" --(port|[a-z]+-bytes) ", uncommented))
    assert {flag.replace("-", "_") for flag in flags} <= {setting.name for setting in SETTINGS}
    assert named or flags


def test_probes_work_with_a_token_and_named_hosts_on_every_address(tmp_path: Path) -> None:
    """The Dockerfile's health check works unchanged, and so do Kubernetes' probes, which use the pod's address."""
    tokens = tmp_path / "token"
    tokens.write_text("0123456789abcdef0123456789abcdef\n")
    tokens.chmod(0o600)
    check = re.search(r'"-c", "(.*urlopen.*)"\]', (DEPLOY / "Dockerfile").read_text())
    assert check is not None
    paths = re.findall(r"httpGet: \{path: (/\w+),", (DEPLOY / "kubernetes.yaml").read_text())
    assert set(paths) == {"/healthz", "/readyz"}
    exposed = ["--host", "0.0.0.0", "--token-file", str(tokens), "--allow-host", "wal.example.com"]
    with Process(tmp_path / "wal", exposed) as service:
        command = check[1].replace(":8080", f":{service.port}")
        assert command != check[1]
        assert subprocess.run([sys.executable, "-c", command], timeout=60, check=False).returncode == 0
        for path in paths:
            status = 503
            while status == 503:  # it recovers
                status = ask(service.port, path, "10.0.0.7:8080")
            assert status == 200
        assert ask(service.port, "/metrics", "10.0.0.7:8080") == 421
        assert ask(service.port, "/metrics", "wal.example.com") == 401


def test_what_scrapes_metrics_brings_a_token() -> None:
    """Annotations cannot provide a token, so the file has none for Prometheus."""
    text = (DEPLOY / "kubernetes.yaml").read_text()
    assert re.findall(r"^\s*prometheus\.io", text, re.MULTILINE) == []
    assert "credentials_file" in text


def ask(port: int, path: str, host: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={"Host": host})
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_takes_the_unit() -> None:
    """systemd knows every key of the unit."""
    unit = str(DEPLOY / "mrecordlog.service")
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    assert "Unknown" not in done.stderr
