"""Time-outs for HTTP requests of a client that sets none."""

from __future__ import annotations

from typing import Any

import requests
from requests.adapters import HTTPAdapter

_BLOCK_BYTES = 1 << 20


class TimeoutAdapter(HTTPAdapter):
    """An adapter that sets a time-out for requests that have none (alluxio-py's readers and writers), and sends large pieces.

    Args:
        seconds: time to connect, and time to wait for the next bytes.
    """

    def __init__(self, seconds: tuple[float, float]) -> None:
        self._seconds = seconds
        super().__init__(max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, blocksize=_BLOCK_BYTES, **kwargs)

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = self._seconds
        return super().send(request, *args, **kwargs)
