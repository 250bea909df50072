"""What a model does and what it still knows: accuracy, F1, membership, relearning, distances.

Models are measured in eval mode and left as they were. Classifiers give one logit per class,
outputs (records, classes), for whole labels (records,).
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from expunge.deep.batches import Batches, as_batches
from expunge.deep.descent import Descent, Diverged, Recipe
from expunge.deep.graphs import Loss
from expunge.deep.network import evaluating, view
from expunge.deep.renewal import duplicate
from expunge.deep.roc import Floats, auc_interval, delong, fitted_score
from expunge.deep.training import call, cross_entropy, records, shuffled
from expunge.deep.training import mean_loss as batch_loss
from expunge.errors import InvalidInput

CHUNK = 1024
"""Records that are run at once."""


@dataclass(frozen=True)
class Attack:
    """What a membership attack found on rows that it was not fitted on.

    Attributes
    ----------
    accuracy : float
        Mean of the shares of both sides that it is right about: 0.5 is guessing.
    auc, low, high : float
        Area under the curve and its 95 % interval: 0.5 is guessing.
    loss_auc : float
        AUC of the bare score −loss, on all rows. Below 0.5 the forgotten records look worse than
        ones never seen, which gives them away as well.
    """

    accuracy: float
    auc: float
    low: float
    high: float
    loss_auc: float


@dataclass(frozen=True)
class Relearned:
    """Steps until a model had learnt again what it was to forget, one number per order.

    Attributes
    ----------
    steps : tuple of int
    cap : int
        Where counting stopped. A number equal to it says "not before", unless it was reached there.
    reached : tuple of bool
    """

    steps: tuple[int, ...]
    cap: int
    reached: tuple[bool, ...]

    @property
    def median(self) -> float:
        """The median; a lower bound where it is `censored`."""
        return float(statistics.median(self.steps))

    @property
    def censored(self) -> bool:
        """Whether the median is at the cap, so that only a lower bound is known."""
        return 2 * sum(self.reached) <= len(self.reached)


@dataclass(frozen=True)
class Distance:
    """Mean distances between the predictions of two models on the same records.

    Attributes
    ----------
    variation : float
        Total variation, in [0, 1].
    js : float
        Jensen-Shannon divergence in nats, in [0, ln 2].
    disagreement : float
        Share of records on which the predicted classes differ.
    """

    variation: float
    js: float
    disagreement: float


def accuracy(model: nn.Module, data: Any) -> float:
    """Return the share of records whose label has the largest output."""
    logits, labels = classified(model, data)
    return float((logits.argmax(1) == labels).double().mean())


def mean_loss(model: nn.Module, data: Any, loss: Loss = cross_entropy) -> float:
    """Return the mean loss of the records, without weight decay."""
    batches, total = _placed(model, data), 0.0
    with evaluating(model), torch.no_grad():
        for batch in batches.chunks(CHUNK):
            total += float(batch_loss(model, loss, batch).double()) * len(batch[1])
    return total / batches.rows


def f1(model: nn.Module, data: Any, average: Literal["macro", "micro"] = "macro") -> float:
    """Return the F1 score: the mean over classes, or over records (then it is the accuracy).

    Classes that are neither present nor predicted do not count.
    """
    if average not in ("macro", "micro"):
        raise InvalidInput(f"average must be macro or micro, not {average!r}")
    logits, labels = classified(model, data)
    if average == "micro":
        return float((logits.argmax(1) == labels).double().mean())
    size = logits.shape[1]
    predicted = torch.bincount(logits.argmax(1), minlength=size).double()
    present = torch.bincount(labels, minlength=size).double()
    right = torch.bincount(labels[logits.argmax(1) == labels], minlength=size).double()
    seen = predicted + present > 0
    return float((2.0 * right[seen] / (predicted + present)[seen]).mean())


def membership(model: nn.Module, forget: Any, unseen: Any, *, seed: int = 0) -> Attack:
    """Try to tell forgotten records from unseen ones by what the model says about them.

    A population attack: logistic regression on loss, margin, entropy and correctness, fitted on
    one half of each side and scored on the other halves. An exact retraining gives 0.5 up to the
    interval; 0.5 does not show that every record is safe, only that the average one is.

    Parameters
    ----------
    forget, unseen : data
        Never compare with retained records, which a retrained model has seen. ``unseen`` must have
        the mix of classes of ``forget``.
    seed : int
        Of the halves.
    """
    sides = [_features(*classified(model, data)) for data in (forget, unseen)]
    if min(map(len, sides)) < 4:
        raise InvalidInput(
            f"the attack needs 4 records on each side, not {len(sides[0])} and {len(sides[1])}"
        )
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(len(rows)) for rows in sides]
    fit, held = ([rows[it[i::2]] for rows, it in zip(sides, orders, strict=True)] for i in (0, 1))
    member, other = (fitted_score(fit[0], fit[1], rows) for rows in held)
    right = ((member > 0).mean() + (other <= 0).mean()) / 2
    bare = delong(-sides[0][:, 0], -sides[1][:, 0])[0]
    return Attack(float(right), *auc_interval(member, other), bare)


def relearn_steps(
    model: nn.Module,
    forget: Any,
    target_loss: float,
    *,
    loss: Loss = cross_entropy,
    lr: float = 1e-2,
    batch_size: int = 64,
    cap: int = 1000,
    orders: int = 5,
) -> Relearned:
    """Count the steps of plain SGD on F until the mean loss on it is at most ``target_loss``.

    The measure is the loss after every step, in eval mode, on a copy. The orders of the records are
    the same for every model. A model that diverges never gets there.

    Parameters
    ----------
    target_loss : float
        Usually 1.05 times the loss on F of the model that knew it.
    cap : int
        Steps after which counting stops.
    """
    if not math.isfinite(target_loss) or orders < 1 or cap < 1:
        raise InvalidInput(
            "relearning needs a finite target_loss, and orders and cap of at least 1; got "
            f"{target_loss}, {orders} and {cap}"
        )
    recipe = Recipe("sgd", lr, batch_size=batch_size)
    found = [
        _relearn(model, forget, target_loss, loss, recipe, cap, order) for order in range(orders)
    ]
    return Relearned(
        tuple(cap if steps is None else steps for steps in found),
        cap,
        tuple(steps is not None for steps in found),
    )


def function_distance(a: nn.Module, b: nn.Module, data: Any) -> Distance:
    """Return how far two classifiers' predictions are apart on average."""
    p, q = (classified(model, data)[0].softmax(1) for model in (a, b))
    if p.shape != q.shape:
        raise InvalidInput(f"the models have {p.shape[1]} and {q.shape[1]} classes")
    middle = ((p + q) / 2).clamp(min=torch.finfo(p.dtype).tiny)
    js = sum(torch.special.xlogy(side, side / middle).sum(1) for side in (p, q)) / 2
    return Distance(
        float((p - q).abs().sum(1).mean() / 2),
        float(torch.as_tensor(js).clamp(min=0.0).mean()),
        float((p.argmax(1) != q.argmax(1)).double().mean()),
    )


def weight_distance(a: nn.Module, b: nn.Module) -> float:
    """Return the Euclidean distance between all parameters of two models of the same form."""
    p, q = ({name: w.detach() for name, w in model.named_parameters()} for model in (a, b))
    if {name: w.shape for name, w in p.items()} != {name: w.shape for name, w in q.items()}:
        raise InvalidInput("the models have parameters of different names or shapes")
    squares = [
        (p[name].double() - q[name].to(p[name].device).double()).square().sum() for name in p
    ]
    return math.sqrt(sum(float(it) for it in squares))


def classified(model: nn.Module, data: Any) -> tuple[Tensor, Tensor]:
    """Return all outputs (records, classes) in float64 and all labels (records,), on the CPU.

    Raises
    ------
    InvalidInput
        If the outputs or the targets are not those of a classifier.
    """
    outputs, labels = [], []
    with evaluating(model), torch.no_grad():
        for inputs, targets in _placed(model, data).chunks(CHUNK):
            logits = call(model, inputs)
            whole = targets.ndim == 1 and not targets.is_floating_point()
            if not (isinstance(logits, Tensor) and logits.ndim == 2 and whole):
                raise InvalidInput(
                    "this measure is for classifiers: outputs (records, classes) and whole labels "
                    "(records,)"
                )
            outputs.append(logits.detach().cpu().double())
            labels.append(targets.cpu().long())
    found, known = torch.cat(outputs), torch.cat(labels)
    if bool(found.isnan().any()):
        raise InvalidInput("the model's outputs are not numbers (NaN): its weights have diverged")
    if not 0 <= int(known.min()) <= int(known.max()) < found.shape[1]:
        raise InvalidInput(
            f"labels must be from 0 to {found.shape[1] - 1}, one per output; they go from "
            f"{int(known.min())} to {int(known.max())}"
        )
    return found, known


def _placed(model: nn.Module, data: Any) -> Batches:
    return as_batches(data, device=next(model.parameters()).device)


def _features(logits: Tensor, labels: Tensor) -> Floats:
    """Return loss, margin, entropy and correctness (records, 4)."""
    chosen = torch.nn.functional.one_hot(labels, logits.shape[1]).bool()
    own = logits[chosen]
    margin = own - logits.masked_fill(chosen, -torch.inf).logsumexp(1)
    logs = logits.log_softmax(1)
    entropy = torch.special.entr(logs.exp()).sum(1)
    columns = [-logs[chosen], margin, entropy, (logits.argmax(1) == labels).double()]
    features: Floats = torch.stack(columns, 1).numpy()
    return features


def _relearn(
    model: nn.Module,
    forget: Any,
    target: float,
    loss: Loss,
    recipe: Recipe,
    cap: int,
    order: int,
) -> int | None:
    pupil = duplicate(model)
    network = view(pupil)
    batches = records(forget, network.device)
    descent = Descent(network, recipe, -(-batches.rows // recipe.batch_size))
    generator = torch.Generator().manual_seed(order)
    with evaluating(pupil):
        if mean_loss(pupil, batches, loss) <= target:
            return 0
        while descent.steps < cap:
            for _, batch in shuffled(batches, recipe.batch_size, generator):
                try:
                    descent.step(batch_loss(pupil, loss, batch))
                except Diverged:
                    return None
                if mean_loss(pupil, batches, loss) <= target:
                    return descent.steps
                if descent.steps == cap:
                    break
    return None
