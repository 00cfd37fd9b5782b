"""Kernels: covariance functions of single points, their algebra and matrices."""

from jgp.kernels._base import (
    AbstractKernel,
    Constant,
    Power,
    Product,
    Scaled,
    Select,
    Sum,
    Warped,
    check_dimension,
    on,
)
from jgp.kernels._gram import diagonal, gram
from jgp.kernels._stationary import (
    AbstractStationary,
    Matern12,
    Matern32,
    Matern52,
    SquaredExponential,
)

__all__ = [
    "AbstractKernel",
    "AbstractStationary",
    "Constant",
    "Matern12",
    "Matern32",
    "Matern52",
    "Power",
    "Product",
    "Scaled",
    "Select",
    "SquaredExponential",
    "Sum",
    "Warped",
    "check_dimension",
    "diagonal",
    "gram",
    "on",
]
