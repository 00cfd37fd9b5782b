"""A fit that is killed and resumed ends where one that was not does."""

import os
import random
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import optax
import pytest

import jgp
from jgp import kernels, likelihoods

PROGRAM = """
import sys
import jax
import numpy as np
from tests.test_checkpoint import fitted
jax.config.update("jax_enable_x64", True)
found = fitted(sys.argv[1])
values = [float(v) for _, v, _ in __import__("jgp").table(found.model)]
np.save(sys.argv[2], np.array([*values, found.approximation.log_evidence]))
"""


def fitted(checkpoint=None, *, kernel=None, prior=None, **options):
    x = np.linspace(0, 1, 20)
    y = np.sin(6 * x) + 0.3 * np.cos(40 * x)
    kernel = 1.0 * (kernels.SquaredExponential(0.5) if kernel is None else kernel)
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(0.1))
    if prior is not None:
        model = jgp.with_prior(model, lambda m: m.process.kernel.kernel, prior)
    settings = {"restarts": 3, "key": jax.random.key(1), "checkpoint_every": 0.0}
    settings |= {"throw": False, "progress": False, "checkpoint": checkpoint}
    return jgp.fit(model, x, y, **(settings | options))


def values(found):
    leaves = [float(v) for _, v, _ in jgp.table(found.model)]
    return np.array([*leaves, float(found.approximation.log_evidence)])


@pytest.mark.slow
def test_ends_the_same_when_stopped_again_and_again(tmp_path):
    path = tmp_path / "fit.npz"
    wanted = fitted()

    class Stopped(Exception):
        pass

    def stopping(*_):
        nonlocal left
        left -= 1
        if not left:
            raise Stopped

    for _ in range(50):
        left = 7
        try:
            found = fitted(path, callback=stopping)
        except Stopped:
            continue
        break
    np.testing.assert_array_equal(values(found), values(wanted))
    assert found.num_evaluations == wanted.num_evaluations
    # A file that is complete is the result itself.
    np.testing.assert_array_equal(values(fitted(path)), values(wanted))


def test_another_fits_file_is_refused(tmp_path):
    path = tmp_path / "fit.npz"
    fitted(path)
    with pytest.raises(ValueError, match=r"checkpoint: got .*of a fit with other"):
        fitted(path, max_steps=3)
    with pytest.raises(ValueError, match=r"checkpoint: got .*of another fit"):
        fitted(path, objective="leave_one_out")
    path.unlink()
    fitted(path, objective=lambda found: found.log_evidence)
    with pytest.raises(ValueError, match="of another objective, prior or method"):
        fitted(path, objective=lambda found: 2 * found.log_evidence)
    with pytest.raises(ValueError, match="of another fit"):
        fitted(path, kernel=kernels.Matern12(0.5))
    with pytest.raises(ValueError, match="of another fit"):
        fitted(path, prior=jgp.priors.LogNormal(0.1, 0.1))
    path.unlink()
    options = {"restarts": 1, "max_steps": 4, "init": "model"}
    fitted(path, optimizer=optax.adam(0.1), **options)
    with pytest.raises(ValueError, match=r"checkpoint: got .*of a fit with other"):
        fitted(path, optimizer=optax.adam(0.01), **options)
    more = fitted(path, optimizer=optax.adam(0.1), **{**options, "max_steps": 8})
    alone = fitted(optimizer=optax.adam(0.1), **{**options, "max_steps": 8})
    np.testing.assert_array_equal(values(more), values(alone))
    for text in ("nothing", ""):
        path.write_text(text)
        with pytest.raises(ValueError, match="no checkpoint of a fit"):
            fitted(path)


@pytest.mark.long
def test_survives_being_killed_at_random_moments(tmp_path):
    wanted = values(fitted())
    chance = random.Random(0)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    for trial in range(20):
        path, out = tmp_path / f"{trial}.npz", tmp_path / f"{trial}.npy"
        command = [sys.executable, "-c", PROGRAM, str(path), str(out)]
        started = subprocess.Popen(command, env=environment)
        deadline = time.monotonic() + 120
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.5))
        started.send_signal(signal.SIGKILL)
        started.wait()
        subprocess.run(command, env=environment, check=True)
        np.testing.assert_allclose(np.load(out), wanted, rtol=1e-12)
