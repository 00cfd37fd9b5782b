"""Kernels: covariance functions of single points, their algebra and matrices."""

from jgp._constraints import LENGTHS, POSITIVE
from jgp.kernels._base import (
    AbstractKernel,
    Constant,
    Power,
    Product,
    Scaled,
    Sum,
    kernels_in,
)
from jgp.kernels._compact import (
    TrigonometricCompact,
    Wendland,
)
from jgp.kernels._convolution import (
    Convolved,
    GaussianSmoothed,
)
from jgp.kernels._derivative import (
    Derivative,
    WithDerivatives,
    check_smooth,
)
from jgp.kernels._discrete import (
    Categorical,
    Coregionalization,
    White,
)
from jgp.kernels._domain import check_dimension, check_domain
from jgp.kernels._dot_product import (
    ArcCosine,
    Linear,
    NeuralNetwork,
    Polynomial,
)
from jgp.kernels._gram import (
    diagonal,
    gram,
)
from jgp.kernels._image import (
    SSIM,
    MeanSSIM,
)
from jgp.kernels._integral import WithIntegrals
from jgp.kernels._nonstationary import (
    Gibbs,
    NonStationary,
)
from jgp.kernels._periodic import (
    Cosine,
    Periodic,
    SpectralMixture,
)
from jgp.kernels._positive_axis import (
    Cauchy,
    IntegratedWiener,
    Wiener,
)
from jgp.kernels._profiles import (
    GammaExponential,
    Matern,
    RationalQuadratic,
)
from jgp.kernels._spectral import Combined, random_function
from jgp.kernels._stationary import (
    AbstractStationary,
    Matern12,
    Matern32,
    Matern52,
    Matern72,
    SquaredExponential,
)
from jgp.kernels._transforms import (
    DirectSum,
    HarmonicNormalized,
    Normalized,
    Select,
    TensorProduct,
    Warped,
    check_numbers,
    on,
    split_terms,
    terms,
)

__all__ = [
    "LENGTHS",
    "POSITIVE",
    "SSIM",
    "AbstractKernel",
    "AbstractStationary",
    "ArcCosine",
    "Categorical",
    "Cauchy",
    "Combined",
    "Constant",
    "Convolved",
    "Coregionalization",
    "Cosine",
    "Derivative",
    "DirectSum",
    "GammaExponential",
    "GaussianSmoothed",
    "Gibbs",
    "HarmonicNormalized",
    "IntegratedWiener",
    "Linear",
    "Matern",
    "Matern12",
    "Matern32",
    "Matern52",
    "Matern72",
    "MeanSSIM",
    "NeuralNetwork",
    "NonStationary",
    "Normalized",
    "Periodic",
    "Polynomial",
    "Power",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "Select",
    "SpectralMixture",
    "SquaredExponential",
    "Sum",
    "TensorProduct",
    "TrigonometricCompact",
    "Warped",
    "Wendland",
    "White",
    "Wiener",
    "WithDerivatives",
    "WithIntegrals",
    "check_dimension",
    "check_domain",
    "check_numbers",
    "check_smooth",
    "diagonal",
    "gram",
    "kernels_in",
    "on",
    "random_function",
    "split_terms",
    "terms",
]
