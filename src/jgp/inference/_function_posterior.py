"""Posteriors whose latent functions can be differentiated, and drawn as functions."""

import abc

from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from jgp._process import AbstractProcess
from jgp.inference._gradient import Gradient, gradient_of
from jgp.inference._joint_sites import check_semidefinite
from jgp.inference._paths import Path, path_of
from jgp.inference._posterior import AbstractGaussianPosterior


class AbstractFunctionPosterior(AbstractGaussianPosterior):
    """A Gaussian process again, with derivatives and draws of its functions."""

    @property
    @abc.abstractmethod
    def left_out(self) -> AbstractProcess | None:
        """Of a component, the terms of the prior that are not its own."""

    @abc.abstractmethod
    def slopes_at(self, point: Float[Array, " d"]) -> tuple[Array, Array]:
        """Mean (C, d) and covariance (C, d, d) of the derivatives at a point."""

    @abc.abstractmethod
    def corrected(
        self, drawn: Float[Array, "n C"], key: PRNGKeyArray
    ) -> tuple[Float[Array, "n C"], Float[Array, "p C"] | None]:
        """Weights, and coefficients of the trend, for a draw of the prior at X.

        Those of the data, less the draw and less one of the noise by the key.
        """

    def gradient(self, x_new: ArrayLike) -> Gradient:
        """The derivatives of the latent functions at each input.

        Differentiation is linear: the mean of the derivative is the derivative of the
        mean, and its covariance is ∂²k/∂x∂z − JᵀMJ, J = ∂k(X, x)/∂x (Rasmussen &
        Williams 2006, §9.4).

        Args:
            x_new: (m, d), or (m,) for d = 1.

        Raises:
            ValueError: for a kernel whose draws have no derivatives.
        """
        return gradient_of(self, type(self).slopes_at, x_new)

    def path(
        self,
        *,
        key: PRNGKeyArray,
        num_features: int = 2000,
        inputs: ArrayLike | None = None,
    ) -> Path:
        """A draw of the latent functions that can be evaluated anywhere, and again.

        Wilson et al. 2020: a draw of the prior, corrected by the data. The prior is
        drawn by random features (kernels with a known spectral density, sums and
        scalings of them, linear and constant ones), or exactly at given inputs and
        between them by the prior's conditional mean (any kernel).

        Args:
            key: A PRNG key.
            num_features: Random features for each stationary part; the error of
                covariances is of order num_features^{-½}.
            inputs: (m, d) inputs at which the draw is exact, in place of features.

        Raises:
            ValueError: for a kernel without features where no `inputs` are given, and
                for sites of negative precision, which no noise stands for.
        """
        sites = getattr(self, "sites", None)
        if sites is not None:
            check_semidefinite(sites, "path")
        return path_of(
            self.process,
            self.x,
            self.corrected,
            rest=self.left_out,
            key=key,
            num_features=num_features,
            inputs=inputs,
        )
