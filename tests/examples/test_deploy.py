"""The service files say what the service takes."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mrecordlog_async.cli.settings import SETTINGS, add_settings, gather

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
    left_out = {"uds", "segment_bytes", "pending_bytes", "queues", "bodies_bytes"}
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


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed here")
def test_systemd_takes_the_unit() -> None:
    """systemd knows every key of the unit."""
    unit = str(DEPLOY / "mrecordlog.service")
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60)
    assert "Unknown" not in done.stderr
