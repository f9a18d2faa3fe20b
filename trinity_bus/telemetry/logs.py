"""Log lines: on the console with the trace that they belong to, and over OTLP where an endpoint is configured.

::

    logging --console()-------> stderr   "12:00:01 WARNING workers.explorer.executor: task t1 ... [trace 4bf9...]"
            |--LogExport------> OTLP     severity, text, exception, trace id and span id; only with an endpoint

A line has a trace id exactly when it is written while a span is the current one. Without an endpoint log lines go to
the console alone: the folder of a run keeps the console's output of its processes already. So are lines from before
there is an exporter, as of an explorer until its engine's process, which is forked and must have none, is there.

A line is a line: names and error texts come off the wire, from workflows and from models, so whatever in a message
could end a line or steer a terminal is escaped, and each line of a traceback is indented. Nobody can write a line in
another's name.

What goes wrong while log lines are exported is told on the console only, or it would be exported in turn, for ever.
"""

import logging
import os
from typing import Final, override

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.instrumentation.logging.handler import LoggingHandler
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import format_trace_id

from schemas.errors import printable
from trinity_bus.errors import ConfigError

FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
OWN: Final = ("opentelemetry", "urllib3", "requests")  # loggers of what exports


class TraceFormatter(logging.Formatter):
    """Escapes what is written, and adds the trace id of the current span, where there is one."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        # One line, or more with a traceback, all but the first indented; the trace id ends the first.
        record.message = printable(record.getMessage())
        record.asctime = self.formatTime(record, self.datefmt)
        lines = [self.formatMessage(record)]
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            lines[0] += f" [trace {format_trace_id(context.trace_id)}]"
        # Not what another formatter has kept of it, which is as it came.
        told = [self.formatException(record.exc_info)] if record.exc_info else []
        told += [self.formatStack(record.stack_info)] if record.stack_info else []
        lines += [f"  {printable(line)}" for text in told for line in text.splitlines()]
        return "\n".join(lines)


class _Body(logging.Formatter):
    # What a line says, escaped; its exception goes beside it.
    @override
    def format(self, record: logging.LogRecord) -> str:
        return printable(record.getMessage())


def wanted_level() -> int:
    """Return what the variable LOG_LEVEL asks a service to log from on: ``info`` where it is not set."""
    name = os.environ.get("LOG_LEVEL") or "info"
    level = logging.getLevelNamesMapping().get(name.upper())
    if level is None:
        raise ConfigError(f"LOG_LEVEL={name!r}: expected debug, info, warning or error")
    return level


def console(level: int | str = logging.INFO, *, template: str = FORMAT) -> None:
    """Have log lines of this process written to stderr, with trace ids. Does nothing where a handler is set already."""
    handler = logging.StreamHandler()
    handler.setFormatter(TraceFormatter(template, datefmt="%H:%M:%S"))
    logging.basicConfig(level=level, handlers=[handler])
    # Every fetch and every metadata refresh of the client would be a line.
    # Megatron-core prints each of its configurations, thousands of characters long.
    for name in ("aiokafka", "megatron"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))


class LogExport:
    """Sends what this process logs to the OTLP endpoint of the environment, until it is closed."""

    def __init__(self, resource: Resource) -> None:
        # Shut down by its owner, who knows when the last line is written.
        self._provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
        self._handler = _Handler(logger_provider=self._provider)
        self._handler.addFilter(lambda record: record.name.partition(".")[0] not in OWN)
        self._handler.setFormatter(_Body())

    def begin(self) -> None:
        """From now on, every line of every logger."""
        logging.getLogger().addHandler(self._handler)

    def close(self) -> None:
        """Send what is held back, then stop. Safe to call twice."""
        logging.getLogger().removeHandler(self._handler)
        self._provider.shutdown()


class _Handler(LoggingHandler):
    # ``logging`` flushes as the interpreter exits, when no thread can be started any more; the owner of the provider
    # sends what is held back.
    @override
    def flush(self) -> None: ...
