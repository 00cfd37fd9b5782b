"""The shape of the package: who may import whom, and what a class may be."""

import ast
import dataclasses
import graphlib
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import equinox as eqx
import pytest

import jgp
from jgp import kernels, likelihoods, means
from tests import cases

SOURCE = Path(jgp.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# A module imports only from its own layer and those below it.
LAYERS = {
    0: {"_types", "_results"},
    1: {
        "_archive",
        "_bessel",
        "_block_tridiagonal",
        "_lapack",
        "_linalg",
        "_normal",
        "_constraints",
        "_parameters",
        "_fixed_point",
        "_ascent",
        "_cores",
        "_implicit",
    },
    2: {
        "_gaussian",
        "_bivariate",
        "_cubature",
        "_orthant",
        "_orthant_cumulants",
        "_lbfgs",
        "sampling",
    },
    3: {"kernels", "likelihoods", "means", "priors"},
    4: {"_mean_functions", "_process", "_sparse_process", "_coregionalised", "_model"},
    5: {"inference", "quadrature"},
    6: {
        "_correction",
        "_bayes_factor",
        "_bounds",
        "_checkpoint",
        "_cross_validation",
        "_evaluator",
        "_fit",
        "_free_parameters",
        "_hyperparameter_draws",
        "_information",
        "_joint_draws",
        "_joint_moves",
        "_objective",
        "_profile",
        "_runs",
        "_search",
        "_standardize",
        "_starts",
        "_left_out",
        "_selection",
    },
    7: {"plots", "sklearn", "io", "testing", "conjugate"},
    8: {"__init__"},
}
LAYER = {name: layer for layer, names in LAYERS.items() for name in names}


def component(path: Path) -> str:
    """The package or module directly under jgp to which a file belongs."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The components of jgp that a file imports, wherever in the file it does."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    inside = [name.split(".")[1:] for name in names if name.split(".")[0] == "jgp"]
    # `import jgp`, or a name that only jgp/__init__.py defines, is the whole package.
    return {parts[0] if parts and parts[0] in LAYER else "__init__" for parts in inside}


def modules():
    """Every module of jgp whose extras are installed."""
    for found in pkgutil.walk_packages([str(SOURCE)], "jgp."):
        try:
            yield importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("jgp"):
                raise


def classes() -> list[type]:
    """Every `equinox.Module` class that jgp defines."""
    list(modules())
    found, todo = [], [eqx.Module]
    while todo:
        for cls in todo.pop().__subclasses__():
            todo.append(cls)
            # Equinox subclasses a class under its own name while initialising it.
            copy = cls.__qualname__ in {base.__qualname__ for base in cls.__bases__}
            if cls.__module__.split(".")[0] == "jgp" and not copy:
                found.append(cls)
    return sorted(set(found), key=lambda cls: (cls.__module__, cls.__qualname__))


def is_abstract(cls: type) -> bool:
    return cls.__name__.lstrip("_").startswith("Abstract")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_downwards(path):
    name = component(path)
    assert name in LAYER, f"{name} stands in no layer"
    upwards = {other for other in imported(path) if LAYER[other] > LAYER[name]}
    assert not upwards, f"{name} (layer {LAYER[name]}) imports {upwards}"


def test_no_two_components_import_each_other():
    graph: dict[str, set[str]] = {}
    for path in FILES:
        name = component(path)
        graph.setdefault(name, set()).update(imported(path) - {name})
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_a_class_is_abstract_or_final():
    for cls in classes():
        above = [base for base in cls.__mro__[1:] if base.__module__.startswith("jgp")]
        concrete = [base for base in above if not is_abstract(base)]
        assert not concrete, f"{cls} subclasses the concrete {concrete}"
        assert not (inspect.isabstract(cls) and not is_abstract(cls)), cls


def test_the_fields_of_a_class_stand_in_one_class():
    for cls in classes():
        with_fields = [
            base
            for base in cls.__mro__
            if any(
                field.name in vars(base).get("__annotations__", {})
                and not field.name.startswith("__")
                for field in dataclasses.fields(cls)
            )
            and not is_abstract(base)
        ]
        assert len(with_fields) <= 1, f"{cls}: fields in {with_fields}"
        if is_abstract(cls):
            assert not dataclasses.fields(cls), f"{cls} is abstract and has fields"


def public_concrete(package, base: type) -> set[type]:
    found = [value for name, value in vars(package).items() if not name.startswith("_")]
    kinds = [cls for cls in found if inspect.isclass(cls) and issubclass(cls, base)]
    return {cls for cls in kinds if not is_abstract(cls)}


@pytest.mark.parametrize(
    ("package", "base", "registry"),
    [
        (kernels, kernels.AbstractKernel, cases.KERNELS),
        (likelihoods, likelihoods.AbstractLikelihood, cases.LIKELIHOODS),
        (means, means.AbstractMean, cases.MEANS),
    ],
    ids=["kernels", "likelihoods", "means"],
)
def test_every_concrete_class_is_registered(package, base, registry):
    registered = {type(case.instance) for case in registry.values()}
    missing = public_concrete(package, base) - registered
    assert not missing, f"add {missing} to tests/cases.py"


def test_no_module_bears_the_name_of_a_public_function():
    public = [getattr(jgp, name) for name in getattr(jgp, "__all__", [])]
    functions = {f.__name__ for f in public if inspect.isroutine(f)}
    clashes = functions & {path.stem for path in FILES}
    assert not clashes


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_are_short_and_leave_the_configuration_alone(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 320
    assert "jax.config.update" not in text


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_one_module_calls_lapack(path):
    # Elsewhere a batched call could wait for ever: see its docstring.
    calls = re.findall(r"\b(?:jnp|lax|jax\.scipy)\.linalg\.(?!norm)", path.read_text())
    assert not calls or path.name == "_lapack.py"
