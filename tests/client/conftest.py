from __future__ import annotations

from tests.service.conftest import served

__all__ = ["served"]
