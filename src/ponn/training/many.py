"""Many networks at once: single-thread processes on all cores, finished ones kept when a process dies."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing

from ponn.engine.passes import cores
from ponn.training.loop import Candidate, Problem, Trained, train

Finished = Callable[[int, int, Trained], None]
ATTEMPTS = 3  # a worker that the system killed takes the pool with it; what was not finished starts again


def train_many(
    problem: Problem,
    candidates: Sequence[Candidate],
    *,
    workers: int | None = None,
    progress: Finished | None = None,
) -> tuple[Trained, ...]:
    """Train candidates in single-thread processes, by default one per core; the same results as `train`, in order.

    The processes stay for the next call (start-up, 3 to 5 s, is paid once) and end with this process or by an
    interruption. Large arrays reach them once, through files mapped into memory.
    progress: how many are done, of how many, the newest.
    """
    workers = min(workers or cores(), len(candidates))
    found: dict[int, Trained] = {}
    with closing(finished(problem, candidates, workers)) as results:
        for place, trained in results:
            found[place] = trained
            if progress:
                progress(len(found), len(candidates), trained)
    return tuple(found[place] for place in range(len(candidates)))


def finished(
    problem: Problem, candidates: Sequence[Candidate], workers: int
) -> Generator[tuple[int, Trained], None, None]:
    """Place and result of every candidate, as they come in."""
    if workers <= 1:
        yield from (numbered(place, problem, one) for place, one in enumerate(candidates))
        return
    left = set(range(len(candidates)))
    for attempt in range(ATTEMPTS):
        try:
            for place, trained in in_processes(problem, candidates, sorted(left), workers):
                left.remove(place)
                yield place, trained
            return
        except worker_died():
            if attempt == ATTEMPTS - 1:
                raise


def in_processes(
    problem: Problem, candidates: Sequence[Candidate], places: list[int], workers: int
) -> Iterator[tuple[int, Trained]]:
    """Results from a pool of processes, in the order in which they are finished."""
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=workers, backend="loky", return_as="generator_unordered", batch_size=1, pre_dispatch="all")
    tasks = (delayed(numbered)(place, problem, candidates[place]) for place in places)
    with closing(pool(tasks)) as results:  # closing it, also after an interruption, kills what still runs
        yield from results


def numbered(place: int, problem: Problem, candidate: Candidate) -> tuple[int, Trained]:
    """Train a candidate and say which one it was."""
    return place, train(problem, candidate)


def worker_died() -> type[Exception]:
    """The error of a pool whose process was killed."""
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    found: type[Exception] = TerminatedWorkerError
    return found
