"""Work side by side on the cores of a CPU."""

import concurrent.futures
import contextlib
import os
from collections.abc import Iterator

import threadpoolctl


@contextlib.contextmanager
def side_by_side() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    """A pool of as many threads as there are cores, each with a core of its own.

    Meanwhile a LAPACK call has one thread: those of OpenBLAS spin while they wait, on
    cores that the others want. On leaving, what has not begun is dropped.
    """
    alone = threadpoolctl.threadpool_limits(1, "blas")
    with alone, concurrent.futures.ThreadPoolExecutor(_num_cores()) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _num_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1
