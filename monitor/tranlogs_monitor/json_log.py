"""Log lines in JSON, one object for each line."""

from __future__ import annotations

import json
import logging
import time


class JsonFormatter(logging.Formatter):
    """Formats a record as an object with time (RFC 3339, UTC), level, logger and message."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        found = {"time": moment, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False)
