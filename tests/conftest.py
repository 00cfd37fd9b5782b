"""Precision of the test run and fixtures shared by all tests.

`pytest` runs in float64; `JGP_TEST_PRECISION=float32 pytest -m float32` is the leg in
which JAX keeps its default of 32 bits. Precision is fixed here, once, before any
array exists; no test changes it.
"""

import contextlib
import os

# Compilation is most of a test run, and its results hardly run at all: these flags
# make it four times shorter. They are read when JAX is first imported.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false",
)

import jax
import pytest
from hypothesis import settings

DOUBLE = os.environ.get("JGP_TEST_PRECISION", "float64") == "float64"
jax.config.update("jax_enable_x64", DOUBLE)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

settings.register_profile("jgp", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("jgp")


@pytest.fixture
def key():
    """A typed key, the same for every test."""
    return jax.random.key(0)


@pytest.fixture
def compilations():
    """A context that counts what XLA compiles within it."""

    @contextlib.contextmanager
    def counting():
        events = []

        def listen(name, _duration, **_):
            if name == "/jax/core/compile/backend_compile_duration":
                events.append(name)

        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            yield lambda: len(events)
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)

    return counting
