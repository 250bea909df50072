"""Published unlearning methods, driven faithfully, for comparison with the engine.

Each is a frozen dataclass of its parameters with ``unlearn(problem) -> Result``. None of them gets
a grade above ``conditional``; what each needs is in its result, what it lacks in its docstring.
Guo et al.'s mechanism changes training too and has its own module, :mod:`expunge.linear.guo`.
"""

from __future__ import annotations

from expunge.linear.comparators.descent import DescentToDelete, NoisyDescent
from expunge.linear.comparators.influence import Influence
from expunge.linear.comparators.problem import Method, Problem, Result, pose
from expunge.linear.comparators.projective import Projective
from expunge.linear.comparators.sekhari import Sekhari

__all__ = ["METHODS", "Method", "Problem", "Result", "pose"]

METHODS: dict[str, type[Method]] = {
    "sekhari": Sekhari,
    "descentToDelete": DescentToDelete,
    "noisyDescent": NoisyDescent,
    "influence": Influence,
    "projective": Projective,
}
