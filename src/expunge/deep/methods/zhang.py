"""Newton unlearning of Zhang, Dong, Wang & Li (ICML 2024): projected step, noise, honest claim.

    w̃ = Π_C(w − (∇²L_R(w) + λI)⁻¹g),   g = ∇L_R(w), or −(m/(n−m))∇L_F(w) if ∇L_D(w) = 0 is hoped

and ``w̃ + N(0, σ²I)`` is released. In a network the bound of the step is never below the diameter
of the ball (`expunge.deep.zhang_bounds`), so a claim pays for the ball and the step adds nothing to
it; with less noise there is no claim, and the report says which ε the noise really gives.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from expunge import __version__
from expunge.deep.graphs import repeatable
from expunge.deep.inverse import lissa
from expunge.deep.methods.common import Work
from expunge.deep.methods.noisy import clipped
from expunge.deep.network import evaluating
from expunge.deep.problem import Evidence, Need, Problem
from expunge.deep.renewal import duplicate, seeded
from expunge.deep.zhang_bounds import Account, lissa_bound, newton_bound
from expunge.deep.zhang_claim import Constants
from expunge.deep.zhang_release import Hidden, Released, Terms, claimed, needed
from expunge.deep.zhang_step import Inverse, Mode, newton
from expunge.errors import InvalidInput
from expunge.guarantee import Tag
from expunge.noise import TAG_KEY_BYTES, release, source_of

__all__ = ["PUBLISHED", "Hidden", "Released", "Zhang"]

PUBLISHED = lissa()
"""10 repeats of 1,000 steps on 10 records, as in the public code; but the scale is measured."""


@dataclass(frozen=True, kw_only=True)
class Zhang:
    """One damped Newton step on ``L_R``, projection, noise; ``conditional`` at best.

    Attributes
    ----------
    radius : float, optional
        C; by default the recipe's ``max_norm``. Without either nothing is projected or claimed.
    gradient : {"retained", "forget"}
        ``forget`` leaves out ``(n/(n−m))∇L_D(w)``, whose norm is printed and enters the bound.
    damping : float, optional
        λ > −λ_min; by default just above ``‖∇²L_R(w)‖``, which the theorem asks for.
    smallest : Evidence, optional
        λ_min, if it is known and λ is given. By default it is computed in full for p ≤ 1,000, and
        estimated by Lanczos' iteration beyond.
    solver : lissa, cg, nystrom_cg or direct
        Without damping of its own. What it leaves unsolved enters the bound.
    sigma : float
        σ per coordinate. The published 1e-3 is worth an ε of about 10⁸.
    epsilon, delta : float
        What is asked for, of all releases together.
    constants : Constants, optional
        M, G (and L, B) of the network, for those who know them; else the bound is infinite.
    paper : bool
        Hold σ against the paper's formula, for ε ≤ 1 and one release.
    noise_seed : int, optional
        Repeatable noise for tests, never for production. By default the operating system's.
    """

    name: ClassVar[str] = "zhang"

    radius: float | None = None
    gradient: Mode = "retained"
    damping: float | None = None
    smallest: Evidence | None = None
    solver: Inverse = PUBLISHED
    sigma: float = 1e-3
    epsilon: float = 1.0
    delta: float = 1e-5
    constants: Constants | None = None
    paper: bool = False
    noise_seed: int | None = field(default=None, repr=False)

    @property
    def needs(self) -> frozenset[Need]:
        """F and R: the Hessian is that of R even where the gradient is that of F."""
        return frozenset({"forget", "retain"})

    def unlearn(self, problem: Problem) -> Released:
        """Return the noised model of a first request.

        Raises
        ------
        InvalidInput
            If the damped Hessian is not positive definite as far as is known.
        NotConverged
            If the solver fails.
        """
        return self.request(problem)[0]

    def request(self, problem: Problem, hidden: Hidden | None = None) -> tuple[Released, Hidden]:
        """Serve a request: return what is released, and the secret state for the next one.

        Parameters
        ----------
        problem : Problem
            Of this request; after the first one its model is ``hidden.model`` and its records are
            those that were retained.
        hidden : Hidden, optional
            As the request before returned it.

        Raises
        ------
        InvalidInput, NotConverged
            As of `unlearn`, and if the problem does not go on where the last request ended.
        """
        problem.require(self.needs, self.name)
        ball = _ball(self.radius, problem)
        self._check(problem, hidden, ball)
        began, work = time.perf_counter(), Work(problem)
        start = float(work.network.vector().double().norm())
        with seeded(problem.seed, work.network.device), repeatable():
            with evaluating(work.model):
                step = newton(work, self.gradient, self.damping, self.solver, self.smallest)
            end = step.end if ball is None else clipped(step.end, ball)
            bound = self._bound(work, ball, start, step.slack)
            after = self._after(work, end, ball, bound, hidden)
            noise = self._noise(work, end, after.releases)
            work.settle()
        terms = Terms(
            self.constants,
            max(1, after.deleted),
            self.noise_seed is not None,
            self._facts(work, noise),
        )
        account = None if ball is None else self._account(ball, after)
        return claimed(work, account, terms, time.perf_counter() - began), after

    def _terms(self, ball: float | None) -> tuple[float | None, ...]:
        return ball, self.sigma, self.epsilon, self.delta

    def _account(self, ball: float, after: Hidden) -> Account:
        return Account(
            after.bound,
            ball,
            self.sigma,
            self.epsilon,
            self.delta,
            after.releases,
            paper=self.paper,
            needs=needed(self.constants),
        )

    def _check(self, problem: Problem, hidden: Hidden | None, ball: float | None) -> None:
        if self.gradient not in ("retained", "forget"):
            raise InvalidInput(f"gradient must be retained or forget, not {self.gradient!r}")
        if self.solver.damping:
            raise InvalidInput(
                f"give the damping to Zhang, not to the solver ({self.solver.damping:g} there)"
            )
        if not (math.isfinite(self.sigma) and self.sigma >= 0.0):
            raise InvalidInput(f"sigma must be a finite number, at least 0, not {self.sigma}")
        if hidden is None:
            return
        if self.gradient == "forget":
            raise InvalidInput(
                "the forget gradient stands for the retained one only at a stationary point, which "
                "the state after a request is not: use gradient='retained'"
            )
        if problem.model is not hidden.model:
            raise InvalidInput("the next request must start from hidden.model")
        if problem.total != hidden.retained:
            raise InvalidInput(
                f"the last request retained {hidden.retained} records, F and R of this one have "
                f"{problem.total}"
            )
        if self._terms(ball) != hidden.terms:
            raise InvalidInput("radius, sigma, epsilon and delta must be those of the last request")

    def _after(
        self, work: Work, end: Tensor, ball: float | None, bound: float, before: Hidden | None
    ) -> Hidden:
        """Return the state after this request: noiseless, inside the ball as it is stored."""
        stored = end.to(work.network.dtype)
        work.network.load(stored if ball is None else clipped(stored, ball))
        last = (0, 0, 0.0) if before is None else (before.deleted, before.releases, before.bound)
        return Hidden(
            duplicate(work.model),
            work.part("retain").rows,
            last[0] + work.problem.removed,
            last[1] + 1,
            max(last[2], bound),
            self._terms(ball),
        )

    def _bound(self, work: Work, ball: float | None, start: float, slack: float) -> float:
        """Return Δ; infinite where a constant is unknown or training was not held in the ball."""
        constants, recipe = self.constants, work.problem.train
        limit = math.inf if recipe is None or recipe.max_norm is None else recipe.max_norm
        moving = any(isinstance(it, nn.modules.batchnorm._NormBase) for it in work.model.modules())
        if constants is None or ball is None or max(limit, start) > ball or moving:
            return math.inf
        damping, smallest = work.evidence["damping"].value, work.evidence["smallest"].value
        known = (ball, damping, constants.hessian_lipschitz.value, smallest)
        left = constants.residual.value
        if constants.gradient_lipschitz is not None and constants.batch_norm is not None:
            published = lissa_bound(
                *known,
                left,
                gradient_lipschitz=constants.gradient_lipschitz.value,
                batch_norm=constants.batch_norm.value,
                parameters=work.network.size,
                failure=constants.failure,
            )
            work.note("publishedLissaBound", published, Tag.assumed)
        return newton_bound(*known, left + slack)

    def _noise(self, work: Work, end: Tensor, index: int) -> dict[str, Any]:
        """Load the noised end of the step into the copy; return what is told of the noise."""
        if self.sigma == 0.0:
            work.network.load(end.to(work.network.dtype))
            return {"noise": "none", "noiseTag": None}
        source, key = source_of("gaussian", self.noise_seed, index), os.urandom(TAG_KEY_BYTES)
        made = release(end.cpu().numpy(), self.sigma, source, key)
        noised = torch.from_numpy(made.weights).to(end.device)
        work.network.load(noised.to(work.network.dtype))
        if not made.production:
            work.warnings.append("seeded noise: not for production")
        return {"noise": made.source, "noiseTag": made.tag}

    def _facts(self, work: Work, noise: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the payload says of the run."""
        kept, gone = work.part("retain").rows, work.part("forget").rows
        names = ("residual", "dropped", "residualPart")
        return {
            "version": __version__,
            "n": kept + gone,
            "m": gone,
            "p": work.network.size,
            "schedule": self._digest(work.problem),
            "buffers": work.evidence["buffers"].value,
            "precision": str(work.network.dtype).removeprefix("torch."),
            "residuals": {name: work.evidence[name].value for name in names},
            **noise,
        }

    def _digest(self, problem: Problem) -> str:
        """Return the SHA-256 of how the model was trained and how the step is taken."""
        solver = {f.name: getattr(self.solver, f.name) for f in fields(self.solver)}
        solver.pop("sketch", None)
        settings = {
            "recipe": None if problem.train is None else problem.train.digest(),
            "solver": [type(self.solver).__name__, solver],
            **{name: getattr(self, name) for name in ("radius", "gradient", "damping", "sigma")},
        }
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _ball(radius: float | None, problem: Problem) -> float | None:
    """Return C, the recipe's own if none is given."""
    if radius is None and problem.train is not None:
        return problem.train.max_norm
    if radius is not None and not (math.isfinite(radius) and radius > 0.0):
        raise InvalidInput(f"radius must be a finite number above 0, not {radius}")
    return radius
