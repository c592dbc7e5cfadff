"""Shards on a cluster: Ray tasks, or Spark's mapInArrow. The same work and the same partial results as anywhere.

Both run the function that local workers run and hand back packed partial results, which are small; rows never reach
the process that asked. Files must have the same path on every machine (a shared folder). Recommendations are written
by the machine that made them.
"""

import os
import pickle
from collections.abc import Iterator, Mapping
from typing import Any

from ponn.engine.passes import ATTEMPTS, Results, Shard, Work, answered, content_of
from ponn.errors import PonnError, install_line, one_line


def missing_engine(extra: str, name: str) -> str:
    """What to do about a missing package."""
    return f"The engine {name!r} needs a package that is not installed: {install_line(extra)}."


# Ray -----------------------------------------------------------------------------------------------------


class OnRay:
    """Plain Ray tasks, one per shard; a task whose worker dies is done again by Ray, ATTEMPTS - 1 times.

    address: of a running cluster; without it one that runs on this machine (`ray start`) is joined, or else a local
    one is started for this process. workers: how many shards at a time.
    """

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        try:
            import ray
        except ImportError as error:
            raise PonnError(missing_engine("cluster", "ray")) from error
        self.ray: Any = ray
        self.workers = workers
        self.started = not ray.is_initialized()
        if self.started:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's 15 starves workers wherever else is work to do
            self.join(address)

    def join(self, address: str | None) -> None:
        """Connect to a cluster, or start one."""
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            self.ray.init(address=address or "auto", **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            if address is not None:
                raise PonnError(
                    f"No Ray cluster answers at {address}: {one_line(error)}. Start one with `ray start --head`, or "
                    "leave out the address to use this machine."
                ) from error
            self.ray.init(num_cpus=self.workers, include_dashboard=False, **quiet)

    @property
    def processors(self) -> int:
        """Of all machines."""
        return int(self.ray.cluster_resources().get("CPU", 0))

    def run(self, work: Work, shards: Mapping[int, Shard]) -> Results:
        """The results, as they are finished."""
        task = self.ray.remote(num_cpus=1, max_retries=ATTEMPTS - 1)(answered_from_bytes)
        packed, left = self.ray.put(pickle.dumps(work)), list(shards.items())[::-1]
        running: dict[Any, int] = {}
        most = self.workers or len(left)
        try:
            while left or running:
                while left and len(running) < most:
                    place, shard = left.pop()
                    running[task.remote(packed, shard)] = place
                (done,), _ = self.ray.wait(list(running), num_returns=1)
                place = running.pop(done)
                yield place, content_of(self.result(done, shards[place]))
        finally:
            for one in running:
                self.ray.cancel(one, force=True)

    def result(self, done: Any, shard: Shard) -> Any:
        """A task's answer."""
        try:
            return self.ray.get(done)
        except self.ray.exceptions.RayError as error:
            raise PonnError(
                f"Ray could not finish {shard.name} in {ATTEMPTS} attempts: {one_line(error)}. The rest is kept."
            ) from error

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        if self.started:
            self.ray.shutdown()


def answered_from_bytes(packed: bytes, shard: Any) -> Any:
    """What a worker answers; the work comes as bytes that this run has made."""
    return answered(pickle.loads(packed), shard)


# Spark ---------------------------------------------------------------------------------------------------


class OnSpark:
    """Spark tasks by mapInArrow, one per shard, over a table of the shards; retried as Spark is set up to.

    address: a master URL, or sc://host of Spark Connect; default the session that is active, or a local one.
    """

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        try:
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise PonnError(missing_engine("spark", "spark")) from error
        builder = SparkSession.builder.appName("ponn")
        if address is not None and address.startswith("sc://"):
            builder = builder.remote(address)
        else:
            here = f"local[{workers or '*'},{ATTEMPTS}]"  # without the second number a task may not fail even once
            builder = builder.master(address or here).config("spark.ui.enabled", "false")
        self.started = SparkSession.getActiveSession() is None
        self.session: Any = builder.getOrCreate()

    def run(self, work: Work, shards: Mapping[int, Shard]) -> Results:
        """The results, as Spark hands them over: partition by partition, in order."""
        if not shards:
            return
        rows = [(place, bytearray(pickle.dumps(shard))) for place, shard in shards.items()]
        table = self.session.createDataFrame(rows, "place long, shard binary").repartitionByRange(len(rows), "place")
        answers = table.mapInArrow(SparkWork(pickle.dumps(work)), "place long, answer binary")
        for place, answer in spark_answers(answers):
            yield place, content_of(answer)

    def close(self) -> None:
        """End the session that was started here."""
        if self.started:
            self.session.stop()


def spark_answers(table: Any) -> Iterator[tuple[int, Any]]:
    """The places and unpickled answers in a table that this run has made, partition by partition."""
    rows = table.toLocalIterator(prefetchPartitions=True)
    while (row := next_row(rows)) is not None:
        yield row["place"], pickle.loads(bytes(row["answer"]))


def next_row(rows: Iterator[Any]) -> Any:
    """The next answer; None when there are no more."""
    try:
        return next(rows, None)
    except spark_errors() as error:
        raise PonnError(
            f"Spark gave up on a shard: {one_line(error)}. Its log tells which machine failed. What was done "
            "before is kept: start the same command again."
        ) from error


def spark_errors() -> tuple[type[Exception], ...]:
    """What Spark raises; the client of Spark Connect comes without py4j."""
    from pyspark.errors import PySparkException

    try:
        from py4j.protocol import Py4JError
    except ImportError:
        return (PySparkException,)
    return (PySparkException, Py4JError)


class SparkWork:
    """Work on the shards of a partition."""

    def __init__(self, packed: bytes) -> None:
        self.packed = packed

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """One answer per shard."""
        import pyarrow as pa

        for batch in batches:
            for row in batch.to_pylist():
                answer = pickle.dumps(answered_from_bytes(self.packed, pickle.loads(row["shard"])))
                yield pa.record_batch({"place": pa.array([row["place"]]), "answer": pa.array([answer], pa.binary())})
