"""Counters of several processes in the text format of Prometheus.

Each worker counts in an array of its own, kept in a file that all can read; whoever is asked adds them up. The file of
a worker that died stays, so a counter never goes back. The client library for Python does the same by an environment
variable that must be set before its import; one array per worker is less, and a test can look at it.
"""

import logging
import mmap
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from ponn.errors import one_line

ROUTES = ("/recommend", "/outcome", "/score", "/policy", "/metrics", "/healthz", "/readyz", "/openapi.json", "other")
STATUSES = (200, 206, 304, 400, 401, 404, 405, 408, 413, 415, 421, 422, 431, 500, 503, 0)  # 0 stands for any other
BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, np.inf)  # seconds
COUNTED = {
    "ponn_recommendations_total": "Rows answered.",
    "ponn_unsupported_total": "Rows whose action was hardly ever taken in such cases.",
    "ponn_restricted_total": "Rows whose best action gave way to the best supported one.",
    "ponn_fell_back_total": "Rows answered by what current practice does, for want of a best supported action.",
    "ponn_surprised_total": "Rows with a value that training never saw.",
    "ponn_decisions_total": "Rows written to the decision log.",
    "ponn_outcomes_total": "Outcomes written to the decision log.",
    'ponn_policy_reloads_total{result="loaded"}': "Replaced policy files that were taken, or refused, by all workers.",
    'ponn_policy_reloads_total{result="refused"}': "",
}
REQUESTS = [(route, status) for route in ROUTES for status in STATUSES]
SLOTS = {key: place for place, key in enumerate([*COUNTED, *REQUESTS, *BOUNDS, "seconds"])}
SIZE = 8 * len(SLOTS)  # bytes
COUNTS = ".counts"  # how the name of a file of counters ends
log = logging.getLogger("ponn.serve")


class Metrics:
    """The counters of this process, and the sum of those of all."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.counts = own_counts() if folder is None else shared_counts(folder)

    def add(self, name: str, by: float = 1) -> None:
        """Count something."""
        self.counts[SLOTS[name]] += by

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request; the times are those of /recommend."""
        known = (path if path in ROUTES else "other", status if status in STATUSES else 0)
        self.counts[SLOTS[known]] += 1
        if path == "/recommend":
            self.counts[SLOTS[BOUNDS[bisect_left(BOUNDS, seconds)]]] += 1
            self.counts[SLOTS["seconds"]] += seconds

    def total(self) -> np.ndarray:
        """The counters of all processes: [slots]."""
        shared = isinstance(self.counts.obj, mmap.mmap) and self.folder
        read = [counts_in(path) for path in sorted(self.folder.glob(f"*{COUNTS}"))] if self.folder else []
        return np.sum([*([] if shared else [np.array(self.counts)]), *(one for one in read if one is not None)], axis=0)

    def text(self, gauges: Mapping[str, float]) -> str:
        """Everything, in the text format 0.0.4."""
        total = self.total()
        return "\n".join([*counter_lines(total), *request_lines(total), *gauge_lines(gauges)]) + "\n"


def shared_counts(folder: Path) -> "memoryview[float]":
    """Numbers that other processes can read from a file; on a full disk, numbers of this process alone.

    The file has its blocks before it is mapped: to write into a hole of a file on a full disk would end the process.
    """
    path = folder / f"{os.getpid()}-{os.urandom(8).hex()}"
    try:
        with path.open("x+b") as file:
            file.write(bytes(SIZE))
            file.flush()
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, SIZE)
            os.fsync(file.fileno())
            found = memoryview(mmap.mmap(file.fileno(), SIZE)).cast("d")
        path.rename(path.with_suffix(COUNTS))  # whole before anybody adds it up
    except OSError as error:
        log.error("this process counts for itself, because its counters cannot be shared: %s", one_line(error))
        path.unlink(missing_ok=True)
        return own_counts()
    return found


def own_counts() -> "memoryview[float]":
    """Numbers of this process."""
    return memoryview(bytearray(SIZE)).cast("d")


def counts_in(path: Path) -> np.ndarray | None:
    """The counters of one process: [slots]; None where the file is no longer there or whole."""
    try:
        found = np.fromfile(path)
    except OSError:
        return None
    return found if len(found) == len(SLOTS) else None


def counter_lines(total: np.ndarray) -> Iterator[str]:
    """The plain counters."""
    for name, about in COUNTED.items():
        bare = name.partition("{")[0]
        if about:
            yield f"# HELP {bare} {about}"
            yield f"# TYPE {bare} counter"
        yield f"{name} {total[SLOTS[name]]:.0f}"


def request_lines(total: np.ndarray) -> Iterator[str]:
    """Requests by route and status, and how long recommending took."""
    yield "# HELP ponn_requests_total Requests answered."
    yield "# TYPE ponn_requests_total counter"
    for request in REQUESTS:
        if count := total[SLOTS[request]]:
            route, status = request
            yield f'ponn_requests_total{{route="{route}",status="{status}"}} {count:.0f}'
    yield "# HELP ponn_recommend_seconds Time from request to answer on /recommend."
    yield "# TYPE ponn_recommend_seconds histogram"
    below = np.cumsum([total[SLOTS[bound]] for bound in BOUNDS])
    for bound, count in zip(BOUNDS, below, strict=True):
        yield f'ponn_recommend_seconds_bucket{{le="{"+Inf" if bound == np.inf else f"{bound:g}"}"}} {count:.0f}'
    yield f"ponn_recommend_seconds_sum {total[SLOTS['seconds']]:.6f}"
    yield f"ponn_recommend_seconds_count {below[-1]:.0f}"


def gauge_lines(gauges: Mapping[str, float]) -> Iterator[str]:
    """What is so right now in the process that answers."""
    for name, value in gauges.items():
        yield f"# TYPE {name.partition('{')[0]} gauge"
        yield f"{name} {value:g}"
