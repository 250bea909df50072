"""Error bounds and noise of Newton unlearning in networks: Zhang, Dong, Wang & Li (ICML 2024).

Pure functions of numbers. The step ``w̃ = w* − H⁻¹∇L_R(w*)`` with ``H = ∇²L_R(w*) + λI`` is compared
with the retrained ``w̃*``; both lie in the ball ``‖w‖ ≤ C``. Losses are *means* over records. With
``H̄`` the mean Hessian on the segment, an identity gives the bound:

    w̃ − w̃* = H⁻¹[(∇²L_R(w*) − H̄)(w* − w̃*) + λ(w* − w̃*) − ∇L_R(w̃*)],

``‖∇²L_R(w*) − H̄‖ ≤ M‖w* − w̃*‖/2`` and ``‖w* − w̃*‖ ≤ 2C``. It is never below the diameter ``2C``
unless ``λ_min > MC``: whatever λ is, a step in a nonconvex network gains nothing over noising the
model as it is. :class:`Account` therefore uses ``2C``, which needs no assumption, wherever the
bound is no better. What may be claimed is decided in :mod:`expunge.deep.zhang_claim`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from expunge.errors import InvalidInput
from expunge.gaussian import (
    ROUNDING,
    classical_sigma,
    epsilon_of,
    require_count,
    require_non_negative,
    require_positive,
    require_probability,
    sigma_for,
)

_UP = 1.0 + ROUNDING
_ULPS = 1.0 + 8 * sys.float_info.epsilon
_MU_MAX = 1e6

NEEDS = ("L", "M", "λ_min", "G", "stationarity")
"""What the published bounds assume of a network and no code can prove."""


# --- bounds of the distance to the retrained model ------------------------------------------------


def newton_bound(
    radius: float, damping: float, hessian_lipschitz: float, smallest: float, residual: float = 0.0
) -> float:
    """Return Δ = (2C(MC + λ) + G)/(λ + λ_min), rounded up.

    Parameters
    ----------
    radius : float
        C > 0, the ball that training and the step are projected onto.
    damping : float
        λ > −λ_min, added to the Hessian of the *mean* loss.
    hessian_lipschitz : float
        M ≥ 0. No finite M exists for ReLU networks and max-pooling.
    smallest : float
        λ_min, the smallest eigenvalue of ∇²L_R(w*), weight decay included.
    residual : float
        G ≥ ‖∇L_R(w̃*)‖; 0 is Theorem 3.4. On the sphere the multiplier of the constraint counts.
        Add the norm of the solver's residual and of a dropped gradient: ``‖H⁻¹r‖`` adds to Δ.

    Raises
    ------
    InvalidInput
        If a number is out of range, or λ ≤ −λ_min: the step is then no descent step.

    Notes
    -----
    Zhang et al. 2024, Theorem 3.4 and its extension to models that have not converged.

    Examples
    --------
    >>> round(newton_bound(10.0, 200.0, 1.0, 0.0, 0.5946), 6)
    21.002973
    """
    require_positive("radius", radius)
    require_non_negative("hessian_lipschitz", hessian_lipschitz)
    require_non_negative("residual", residual)
    curvature = _curvature(damping, smallest)
    return (2 * radius * (hessian_lipschitz * radius + damping) + residual) / curvature * _UP


def lissa_bound(
    radius: float,
    damping: float,
    hessian_lipschitz: float,
    smallest: float,
    residual: float = 0.0,
    *,
    gradient_lipschitz: float,
    batch_norm: float,
    parameters: int,
    failure: float,
) -> float:
    """Return :func:`newton_bound` plus what LiSSA adds, true with probability 1 − ρ.

    Unverified: the constants follow a third party's reading of Theorem 3.6, without the number of
    repeats and the depth on which it depends.

    Parameters
    ----------
    radius, damping, hessian_lipschitz, smallest, residual
        As for :func:`newton_bound`.
    gradient_lipschitz : float
        L ≥ 0.
    batch_norm : float
        B, a bound of the sampled Hessians' spectral norms.
    parameters : int
        p.
    failure : float
        ρ; it must be added to δ.

    Examples
    --------
    >>> known = dict(gradient_lipschitz=0.2065, batch_norm=1.0, parameters=136_386, failure=0.1)
    >>> round(lissa_bound(10.0, 200.0, 1.0, 0.0, 0.5946, **known), 4)
    22.7188
    """
    require_non_negative("gradient_lipschitz", gradient_lipschitz)
    require_non_negative("batch_norm", batch_norm)
    require_count("parameters", parameters)
    require_probability("failure", failure)
    exact = newton_bound(radius, damping, hessian_lipschitz, smallest, residual)
    spread = 16 * batch_norm * math.sqrt(math.log(parameters / failure))
    share = spread / _curvature(damping, smallest) + 1 / 16
    return (exact + share * (2 * gradient_lipschitz * radius + residual)) * _UP


def sequential_bounds(
    radius: float,
    damping: float,
    hessian_lipschitz: float,
    requests: Iterable[tuple[float, float]],
) -> tuple[float, ...]:
    """Return the bound of every request, each from its own ``(λ_min, G)``.

    It does not grow with the number of requests, since every start lies in the ball again.
    Unverified against the paper's own constants.
    """
    return tuple(
        newton_bound(radius, damping, hessian_lipschitz, smallest, residual)
        for smallest, residual in requests
    )


def vacuous(bound: float, radius: float) -> bool:
    """Tell whether a bound is no better than the diameter 2C; NaN is.

    Examples
    --------
    >>> vacuous(newton_bound(10.0, 1e9, 0.0, 0.0), 10.0)
    True
    """
    return not bound < 2 * radius


def _curvature(damping: float, smallest: float) -> float:
    """Return λ + λ_min > 0."""
    require_non_negative("damping", damping)
    if not math.isfinite(smallest):
        raise InvalidInput(f"smallest must be a finite eigenvalue, got {smallest!r}")
    if not damping + smallest > 0:
        raise InvalidInput(
            f"the damping must exceed −λ_min = {-smallest:.6g}, or the damped Hessian is not "
            f"positive definite and the step leads uphill; got damping = {damping:.6g}"
        )
    return damping + smallest


# --- noise ----------------------------------------------------------------------------------------


def sigma_needed(
    shift: float, epsilon: float, delta: float, releases: int = 1, *, paper: bool = False
) -> float:
    """Return the noise with which all releases together are (ε, δ).

    The exact Gaussian curve; in paper mode ``(Δ/ε)√(2 ln(1.25/δ))``, proved for ε ≤ 1 only.

    Raises
    ------
    InvalidInput
        If a number is out of range, or the paper's formula is asked for ε > 1 or many releases.

    Examples
    --------
    >>> round(sigma_needed(20.0, 1.0, 1e-5), 4), round(sigma_needed(20.0, 1, 1e-5, paper=True), 1)
    (74.6126, 96.9)
    """
    if not paper:
        return sigma_for(shift, epsilon, delta, releases)
    if epsilon > 1 or releases > 1:
        raise InvalidInput(
            "the paper's formula holds for one release and ε ≤ 1, "
            f"not for {releases} and ε = {epsilon:g}: leave paper mode"
        )
    return classical_sigma(shift, epsilon, delta)


def implied_epsilon(shift: float, sigma: float, delta: float, releases: int = 1) -> float:
    """Return the ε that noise σ really gives at δ; infinite without noise.

    Examples
    --------
    >>> f"{implied_epsilon(40.0, 0.01, 1e-5):.4e}"
    '8.0171e+06'
    """
    require_non_negative("shift", shift)
    require_non_negative("sigma", sigma)
    require_count("releases", releases)
    mu = _mu(shift, sigma, releases)
    return math.inf if mu > _MU_MAX else epsilon_of(mu, delta)


def _mu(shift: float, sigma: float, releases: int) -> float:
    if shift == 0:
        return 0.0
    return math.sqrt(releases) * shift / sigma * _ULPS if sigma > 0 else math.inf


# --- together -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Account:
    """A bound, a ball and a noise, and what they are worth together.

    Attributes
    ----------
    bound : float
        Δ of the step; infinite where nothing is known.
    radius, sigma : float
        C and σ, per coordinate.
    epsilon, delta : float
        What is asked for: of all releases together.
    releases : int
        How many noised models have been published from the hidden noiseless states.
    failure : float
        ρ, the probability with which the bound may fail; it is taken out of δ.
    paper : bool
        Whether σ is held against the paper's formula instead of the exact curve.
    needs : tuple of str
        Symbols of what is assumed for the bound; it plays no part if the bound is vacuous.
    """

    bound: float
    radius: float
    sigma: float
    epsilon: float
    delta: float
    releases: int = 1
    failure: float = 0.0
    paper: bool = False
    needs: tuple[str, ...] = NEEDS

    def __post_init__(self) -> None:
        """Check the numbers; a bound may be infinite, and NaN counts as that."""
        require_positive("radius", self.radius)
        require_positive("epsilon", self.epsilon)
        require_non_negative("sigma", self.sigma)
        require_non_negative("failure", self.failure)
        require_probability("delta", self.delta)
        require_count("releases", self.releases)
        if math.isnan(self.bound) or self.bound < 0:
            raise InvalidInput(f"a bound is at least 0 or infinite, got {self.bound!r}")

    @property
    def diameter(self) -> float:
        """2C: no two models in the ball are farther apart."""
        return 2 * self.radius

    @property
    def vacuous(self) -> bool:
        """Whether the step's bound is worth no more than the ball."""
        return vacuous(self.bound, self.radius)

    @property
    def method(self) -> str:
        """The mechanism that the noise pays for."""
        return "output_perturbation" if self.vacuous else "zhang"

    @property
    def shift(self) -> float:
        """Δ as used: never above the diameter, since the step is projected again."""
        return self.diameter if self.vacuous else self.bound

    @property
    def curve_delta(self) -> float:
        """δ that is left for the noise; not above 0 if the bound's failure takes it all."""
        return self.delta if self.vacuous else self.delta - self.failure

    @property
    def mu(self) -> float:
        """√releases·Δ/σ, of all releases together."""
        return _mu(self.shift, self.sigma, self.releases)

    @property
    def needed(self) -> float:
        """The σ that (ε, δ) takes; infinite if none does."""
        if self.curve_delta <= 0:
            return math.inf
        return sigma_needed(
            self.shift, self.epsilon, self.curve_delta, self.releases, paper=self.paper
        )

    @property
    def implied(self) -> float:
        """The ε that the noise used really gives at δ."""
        if self.curve_delta <= 0:
            return math.inf
        return implied_epsilon(self.shift, self.sigma, self.curve_delta, self.releases)

    @property
    def refused(self) -> bool:
        """Whether the noise is too small for what is asked."""
        return not self.sigma >= self.needed

    def block(self) -> str:
        """Return the line that goes into every report.

        Examples
        --------
        >>> print(Account(math.inf, 20.0, 0.01, 1.0, 1e-5, needs=("M",)).block())
        bound Δ=inf; ball 2C=40; Δ used=40; σ used=0.01; σ needed=149.2 (ε=1, δ=1e-05, 1 release); \
claim: REFUSED; implied ε=8.017e+06 at δ=1e-05; assumptions A: M; the bound is vacuous: the step \
contributes nothing, this is output perturbation
        """
        many = f"{self.releases} release{'s' if self.releases > 1 else ''}"
        granted = f"({self.epsilon:g}, {self.delta:g})"
        parts = [
            f"bound Δ={self.bound:.4g}",
            f"ball 2C={2 * self.radius:.4g}",
            f"Δ used={self.shift:.4g}",
            f"σ used={self.sigma:.4g}",
            f"σ needed={self.needed:.4g} (ε={self.epsilon:g}, δ={self.delta:g}, {many})",
            f"claim: {'REFUSED' if self.refused else granted}",
            f"implied ε={self.implied:.4g} at δ={self.delta:g}",
            f"assumptions A: {', '.join(self.needs) or 'none'}",
        ]
        if self.vacuous:
            parts.append(
                "the bound is vacuous: the step contributes nothing, this is output perturbation"
            )
        return "; ".join(parts)
