"""The process that starts Spark's Python workers."""

from __future__ import annotations

import subprocess
import sys

LOST_CONNECTION = """
import os
import socket

from mrecordlog_async.spark import worker_daemon as daemon

ours, theirs = socket.socketpair()


def sends_results(sock, authenticated):
    results = os.fdopen(os.dup(sock.fileno()), "wb", 65_536)
    results.write(b"results")
    theirs.close()
    results.flush()


daemon._worker = sends_results
os._exit(daemon.worker(ours, True))
"""


def test_a_worker_whose_connection_java_has_closed_ends_silently() -> None:
    """The last flush fails, and once more when the writer is freed, which Python reports from 3.13 on."""
    ended = subprocess.run([sys.executable, "-c", LOST_CONNECTION], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")
