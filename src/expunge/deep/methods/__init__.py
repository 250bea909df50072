"""Published unlearning methods for networks, each a frozen dataclass with ``unlearn(problem)``.

``METHODS`` names them; `docs/deep-baselines.md` gives their updates, defaults and sources. All but
``retrain`` are ``heuristic``: nothing is guaranteed, and only an audit says what was forgotten.
``zhang`` claims what its noise really gives, which is nothing useful.
"""

from __future__ import annotations

from expunge.deep.methods.amnesiac import Amnesiac
from expunge.deep.methods.boundary import BoundaryExpand, BoundaryShrink
from expunge.deep.methods.dampening import Dampening
from expunge.deep.methods.distill import BadTeacher, Scrub
from expunge.deep.methods.finetune import CatastrophicK, ExactK, FineTune
from expunge.deep.methods.fisher import FisherForgetting
from expunge.deep.methods.influence import Influence
from expunge.deep.methods.labels import RandomLabels, SalUn
from expunge.deep.methods.lcodec import LCodec
from expunge.deep.methods.negative import NegGrad, NegGradPlus
from expunge.deep.methods.ntk import NtkScrub
from expunge.deep.methods.ofmu import Ofmu
from expunge.deep.methods.retrain import Null, Retrain, retrains
from expunge.deep.methods.unsir import Unsir
from expunge.deep.methods.zhang import Zhang
from expunge.deep.problem import Method

__all__ = ["METHODS", "retrains"]

METHODS: dict[str, type[Method]] = {
    "retrain": Retrain,
    "null": Null,
    "finetune": FineTune,
    "cf-k": CatastrophicK,
    "eu-k": ExactK,
    "neggrad": NegGrad,
    "neggrad+": NegGradPlus,
    "random-labels": RandomLabels,
    "amnesiac": Amnesiac,
    "influence": Influence,
    "fisher": FisherForgetting,
    "ntk": NtkScrub,
    "l-codec": LCodec,
    "scrub": Scrub,
    "bad-teacher": BadTeacher,
    "ssd": Dampening,
    "boundary-shrink": BoundaryShrink,
    "boundary-expand": BoundaryExpand,
    "unsir": Unsir,
    "salun": SalUn,
    "ofmu": Ofmu,
    "zhang": Zhang,
}
