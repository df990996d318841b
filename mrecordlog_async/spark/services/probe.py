"""Whether a server that was down responds again, found out in the background: the others must not wait for it."""

from __future__ import annotations

import threading

from mrecordlog_async.spark.services.client import ServiceClient
from mrecordlog_async.spark.services.connection import ServerDownError, ServiceRefusedError


class Probe:
    """One attempt to reach a server, in a thread that ends with the process. responds: None while it is unknown.

    client: used by this thread alone.
    """

    def __init__(self, client: ServiceClient) -> None:
        self.responds: bool | None = None
        self._client = client
        threading.Thread(target=self._run, daemon=True, name="mrecordlog-probe").start()

    def _run(self) -> None:
        responds = True
        try:
            self._client.probe()
        except ServiceRefusedError:
            pass  # it responds; the next listing reports what it refuses
        except (OSError, ServerDownError):
            responds = False
        finally:
            self._client.close()
            self.responds = responds
