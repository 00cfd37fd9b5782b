"""Compare approximate inference for Gaussian-process classification with MCMC.

python -m benchmarks.compare --data iris --methods nested_ep,laplace,mcmc
"""

import argparse
import dataclasses
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
from jaxtyping import PRNGKeyArray
from tqdm import tqdm

import jgp
from benchmarks import data, measure, picture, report
from benchmarks.measure import Measured
from benchmarks.methods import METHODS, Method
from benchmarks.timing import machine
from jgp.inference import DrawsPosterior

# Slower samplers that can be asked for beside "mcmc", the reference.
SAMPLERS = ("elliptical_slice", "metropolis")
NOTES = (
    "Corrected: the evidence by importance sampling from the approximation, ± standard "
    "error. ‖m − m_MCMC‖: distance of the posterior means at the training points from "
    "those of MCMC about the approximation, less the noise, its Monte Carlo error; "
    "blank for chains that disagree. Later calls: inference at the fitted "
    "lengthscales; for chains, one of two equal runs.",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write the tables, the numbers and the picture."""
    options = _parse(arguments)
    jax.config.update("jax_enable_x64", True)
    if options.small:
        _compile_quickly()
    chosen = [name for name in METHODS if name in options.methods]
    dataset = data.load(
        options.data,
        seed=options.seed,
        directory=options.data_dir,
        rows=options.rows,
        small=options.small,
    )
    budget = measure.SMALL if options.small else measure.FULL
    # The quick version leaves out chains from the prior, which take long to compile.
    samplers = [] if options.small else [n for n in SAMPLERS if n in options.methods]
    with_reference = "mcmc" in options.methods
    stages = len(chosen) * (1 + with_reference + len(samplers)) + 1
    panels: list[picture.Panel] = []
    rows: list[Measured] = []
    with tqdm(total=stages, desc=options.data, leave=False, delay=2.0) as bar:
        for number, name in enumerate(chosen):
            key = jax.random.fold_in(jax.random.key(options.seed), number)
            panel, measured = _one(
                METHODS[name], with_reference, samplers, dataset, budget, key, bar
            )
            panels.append(panel)
            rows.extend(measured)
        bar.set_postfix_str("picture")
        options.output.mkdir(parents=True, exist_ok=True)
        stem = options.output / f"compare_{options.data}"
        chains = None if options.small else _chains(options.seed, budget)
        picture.draw(dataset, panels, stem.with_suffix(".png"), chains)
        bar.update()
    title = (
        f"{options.data}: {len(dataset.y)} training and {len(dataset.y_new)} test "
        f"points, {dataset.x.shape[1]} inputs, {len(dataset.classes)} classes"
    )
    text = report.tables([one.row for one in rows], title, NOTES)
    print(text)
    stem.with_suffix(".md").write_text(text)
    record = {
        "data": options.data,
        "rows": options.rows if options.data == "iris" else None,
        "seed": options.seed,
        "small": options.small,
        "num_train": len(dataset.y),
        "num_test": len(dataset.y_new),
        "machine": machine(),
        "methods": [dataclasses.asdict(one.row) for one in rows],
    }
    stem.with_suffix(".json").write_text(json.dumps(record, indent=2) + "\n")


def _compile_quickly() -> None:
    """Trade the speed of compiled code for that of compiling; before any array."""
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_backend_optimization_level=0"


def _chains(
    seed: int, budget: measure.Budget
) -> Callable[[jgp.Approximation], DrawsPosterior]:
    """The chains of the picture, of the shapes that are compiled already."""
    key = jax.random.key(seed)
    return lambda found: measure.chains_about(found, key, budget)


def _one(
    method: Method,
    with_reference: bool,
    samplers: Sequence[str],
    dataset: data.Dataset,
    budget: measure.Budget,
    key: PRNGKeyArray,
    bar: tqdm,
) -> tuple[picture.Panel, list[Measured]]:
    """An approximation with the chains that belong to it."""
    evidence_key, reference_key, chain_key = jax.random.split(key, 3)
    bar.set_postfix_str(method.label)
    first, found = measure.approximation(method, dataset, evidence_key, budget)
    bar.update()
    measured, reference = [first], None
    if with_reference:
        bar.set_postfix_str(f"MCMC about {method.label}")
        reference = measure.reference(method, found, dataset, reference_key, budget)
        bar.update()
        measured.append(reference)
        measure.compare(first, reference)
    for name in samplers:
        bar.set_postfix_str(name)
        chain = measure.sampler(name, method, found, dataset, chain_key, budget)
        bar.update()
        measured.append(chain)
        if reference is not None:
            measure.compare(chain, reference)
    return picture.Panel(method, found, reference), measured


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser("benchmarks.compare", description=description)
    parser.add_argument(
        "--data",
        default="iris",
        help="iris, wine, digits, or NAME for DATA_DIR/classification/NAME.csv",
    )
    parser.add_argument(
        "--methods",
        type=lambda text: text.split(","),
        default=["nested_ep", "laplace", "mcmc"],
        help="comma-separated: nested_ep, laplace, mcmc (elliptical slice about each), "
        "elliptical_slice (about the prior), metropolis",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", choices=("uci", "sklearn"), default="uci")
    parser.add_argument("--small", action="store_true", help="a quick version")
    parser.add_argument("--data-dir", type=Path, default=data.DEFAULT_DIRECTORY)
    parser.add_argument("--output", type=Path, default=Path("results"))
    options = parser.parse_args(arguments)
    unknown = set(options.methods) - {*METHODS, *SAMPLERS, "mcmc"}
    if unknown:
        parser.error(f"--methods: unknown {', '.join(sorted(unknown))}")
    if not set(options.methods) & set(METHODS):
        parser.error("--methods: wanted at least one of nested_ep, laplace")
    return options


if __name__ == "__main__":
    main()
