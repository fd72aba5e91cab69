"""Log lines of LMPool's processes: structlog's records through the standard library's logging, to standard error.

Importing this configures nothing: an embedding program sees loggers named `lmpool.*` and does with them as it likes.
"""

import logging
import os
import sys
from collections.abc import Mapping
from enum import Enum

import structlog

FORMAT_VARIABLE = "LMPOOL_LOG_FORMAT"


class LogFormat(Enum):
    LINES = "lines"
    """For people; with colours on a terminal."""
    JSON = "json"
    """One object a line."""


def get_log(name: str) -> structlog.stdlib.BoundLogger:
    """A logger whose records carry fields: `log.info("what happened", field=value)`."""
    log: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(f"lmpool.{name}"),
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return log


def log_format(environment: Mapping[str, str]) -> LogFormat:
    """Raises ValueError for a format that does not exist."""
    return LogFormat(environment.get(FORMAT_VARIABLE, LogFormat.LINES.value))


def set_up_log(process: str, epoch: int, level: str) -> None:
    """For a process of ours: every record of `level` or graver, with the process and its life on it."""

    def name_process(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {**event, "process": process, "epoch": epoch}

    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        name_process,
        structlog.processors.TimeStamper(fmt="iso", utc=False),
    ]
    last: list[structlog.typing.Processor]
    match log_format(os.environ):
        case LogFormat.JSON:
            last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        case LogFormat.LINES:
            last = [
                structlog.dev.ConsoleRenderer(
                    colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
                )
            ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
