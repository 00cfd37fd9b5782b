"""Wall time, peak memory, and the machine they were measured on."""

import os
import platform
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax


class Timed(NamedTuple):
    """What a function returned, and the seconds until its arrays were ready."""

    value: Any
    seconds: float


def timed(function: Callable[[], Any]) -> Timed:
    """Call and wait for the arrays."""
    start = time.perf_counter()
    value = jax.block_until_ready(function())
    return Timed(value, time.perf_counter() - start)


def median_seconds(function: Callable[[], Any], repeats: int) -> float:
    """Median over several calls."""
    return statistics.median(timed(function).seconds for _ in range(repeats))


def peak_memory() -> float:
    """The largest resident set of the process so far, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if platform.system() == "Darwin" else 2**10)


def machine() -> dict[str, Any]:
    """Processor, cores, versions and device, and nothing that names a host."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "device": jax.devices()[0].device_kind,
        "float": "float64" if jax.config.read("jax_enable_x64") else "float32",
        # Threads of LAPACK that wait by spinning cost most where cores are shared.
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", "default"),
        "load": round(os.getloadavg()[0], 2),
    }


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
