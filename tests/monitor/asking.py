"""Requests to the dashboard of a test."""

from __future__ import annotations

import http.client
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """What the server has answered.

    Attributes:
        status: the code.
        headers: all headers.
        body: the text.
    """

    status: int
    headers: http.client.HTTPMessage
    body: str


def ask(port: int, path: str, method: str = "GET", **headers: str) -> Answer:
    """Send one request over a connection of its own; `User_Agent` is the header "User-Agent"."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read().decode())
    finally:
        connection.close()
