"""What keeps a batch's record below its size limit, whatever tasks and workflows come up with.

A manifest entry takes up to 340 bytes besides its error, so the largest batch's manifest takes 14 MiB; its metrics take
less than another one.
"""

from schemas import BatchRecord
from schemas.record import Metrics

MAX_BATCH_TASKS = 16_384
MAX_ERROR_BYTES = 500
MAX_METRICS = 1024
MAX_METRIC_NAME = 200

if (340 + MAX_ERROR_BYTES) * MAX_BATCH_TASKS + 4 * MAX_METRICS * MAX_METRIC_NAME > BatchRecord.MAX_BYTES:
    raise ValueError("the limits of batches allow records that nobody may send")


def short_error(error: str) -> str:
    """The beginning of an error's text."""
    raw = error.encode("utf-8", "backslashreplace")
    return error if len(raw) <= MAX_ERROR_BYTES else raw[: MAX_ERROR_BYTES - 3].decode("utf-8", "ignore") + "..."


def bounded(metrics: Metrics) -> Metrics:
    """The first ``MAX_METRICS`` of the metrics, without those whose names are beyond all reason."""
    if len(metrics) <= MAX_METRICS and all(len(name) <= MAX_METRIC_NAME for name in metrics):
        return metrics
    names = [name for name in metrics if len(name) <= MAX_METRIC_NAME]
    return {name: metrics[name] for name in names[:MAX_METRICS]}
