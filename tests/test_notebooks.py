"""The notebooks run from the first cell to the last."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# `digits_ssim` takes five minutes, too long for every change.
NAMES = ("kernels", "regression")
FOLDER = Path(__file__).parents[1] / "notebooks"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_notebook_runs(name, tmp_path):
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text())
    cells = [
        "".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"
    ]
    script = tmp_path / f"{name}.py"
    script.write_text("\n\n".join(cells))
    # Pictures are drawn, but on no screen.
    environment = {**os.environ, "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, script],
        env=environment,
        cwd=FOLDER,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
