r"""Conjugate models of normal data, and the Student-t process.

All rest on one integral. For r ~ N(0, vS) of n entries and v ~ InverseGamma(a, b),

    log p(r) = log Γ(a + n/2) − log Γ(a) + a log b − (a + n/2) log(b + rᵀS⁻¹r/2)
               − ½log|S| − (n/2) log 2π,   v | r ~ InverseGamma(a + n/2, b + rᵀS⁻¹r/2),

a multivariate t of 2a degrees of freedom and shape matrix (b/a)S. Parameters of the
wrong shape or out of their range, and data not (n,) or not finite, are a `ValueError`;
results have the dtype of the data, of which there may be none.
"""

from jgp.conjugate._distributions import InverseGamma as InverseGamma
from jgp.conjugate._distributions import MultivariateStudentT as MultivariateStudentT
from jgp.conjugate._distributions import StudentT as StudentT
from jgp.conjugate._models import AbstractConjugate as AbstractConjugate
from jgp.conjugate._models import InverseGammaNormal as InverseGammaNormal
from jgp.conjugate._models import NormalInverseGamma as NormalInverseGamma
from jgp.conjugate._models import NormalNormal as NormalNormal
from jgp.conjugate._student_t_process import (
    StudentTApproximation as StudentTApproximation,
)
from jgp.conjugate._student_t_process import student_t_process as student_t_process
