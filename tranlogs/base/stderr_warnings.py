"""Warnings of a process in which Python's logging is not configured: lines on stderr that name TranLogs."""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("tranlogs")


class StderrWarnings(logging.Handler):
    """Prints warnings as Python's own handler of last resort does, which does not say who warns.

    Like that one it is silent as soon as the program has a handler of its own.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter("TranLogs: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Print the record with the name, unless another handler has it."""
        others = [*LOGGER.handlers, *logging.getLogger().handlers]
        if others == [self] and logging.lastResort is not None:
            message = logging.makeLogRecord(
                {"msg": self.format(record), "levelno": record.levelno, "levelname": record.levelname}
            )
            logging.lastResort.handle(message)


def show_warnings() -> None:
    """Let warnings of `tranlogs` name it where nobody has configured logging."""
    if not any(isinstance(handler, StderrWarnings) for handler in LOGGER.handlers):
        LOGGER.addHandler(StderrWarnings())
