"""The sentences of the page: what codes of a certificate mean to a privacy officer.

Nothing here claims more than the certificate does. A code without a sentence is shown as it is.
"""

from __future__ import annotations

import math
import re
from datetime import datetime

from expunge.guarantee import Grade, Guarantee, View

GRADES = {
    Grade.exact: "as if retrained",
    Grade.certified: "guaranteed under the checked conditions below",
    Grade.conditional: "only if the following unverified assumptions hold",
    Grade.heuristic: "no guarantee; tests only",
}

REGIMES = {
    "gdpr": "GDPR",
    "ccpa": "CCPA",
    "deleteAct": "California Delete Act",
    "none": "voluntary",
}

OUTCOMES = {
    "deleted": "deleted",
    "notFound": "not found",
    "partial": "deleted in part",
    "exempt": "exempt",
    "rejected": "rejected",
    "optedOut": "opted out",
}

ASSUMPTIONS = {
    "convexLoss": "The training objective has one optimum, and the bound used holds for it",
    "unlearnedWithinTolerance": "The parameters lie within the public tolerance of the optimum on "
    "the retained records, rounding included",
    "comparatorWithinTolerance": "A retrained model would lie within the same tolerance",
    "noiseIndependentOfData": "The published noise was drawn independently of all data",
    "policyFixedBeforeRequests": "Tolerance, noise and limits were fixed before any request",
    "featureMapFixed": "How records become numbers does not depend on deleted people",
}

TRUST = {
    "operatorRanStatedCode": "the operator ran the stated code",
    "retainedListComplete": "the list of retained records is complete",
    "sealedStateSecret": "unpublished parameters and keys were kept secret",
    "continuousNoiseModel": "computer noise behaves like ideal noise",
    "featuresPerRecord": "features were computed record by record, or with constants that do not "
    "depend on deleted people",
}

NOT_COVERED = {
    "holderOfOldModel": "Someone who kept the model from before the deletion can still use it",
    "backups": "Backups are not touched by this deletion",
    "predictionLogs": "Logs of past predictions are not touched",
    "derivedModels": "Models and data sets made from the old model are not touched",
    "notProofOfComputation": "A signature does not show that a computation was run; the checks "
    "below do as far as they go",
    "notLegalAdvice": "This page is not legal advice and takes no position on any law",
}

VIEWS = {
    View.afterOnly: "sees one model published after the deletion",
    View.transcript: "sees every model published since the deletion",
    View.beforeAndAfter: "also holds a model from before the deletion",
}

COMPARATORS = {
    "retrain": "a model trained by the same program on the retained records only",
    "cleanUnlearn": "the same procedure run on the retained records only",
    "retainedOnlyLaw": "a law that depends on the retained records only",
}

METHODS = {
    "gaussianOutput": "The parameters were moved to the optimum on the retained records, up to a "
    "public tolerance, and published with fresh random noise that hides what is left.",
    "discreteGaussianOutput": "The parameters were moved to the optimum on the retained records, "
    "up to a public tolerance, and published with fresh discrete noise that hides what is left.",
    "exact": "The parameters are exactly those that training on the retained records gives.",
    "none": "The model was changed by a method that comes without a guarantee.",
}

TEST_BANNER = (
    "TEST CERTIFICATE, NOT FOR PRODUCTION: its noise can be repeated by whoever knows the seed, so "
    "it protects nobody."
)

CHECKS = {
    "signature": "Signature",
    "type": "Kind of document",
    "predicateType": "Kind of statement",
    "json": "Readable",
    "schema": "Format",
    "clock": "Dates",
    "mechanism": "Method",
    "understated": "Numbers claim no more than they give",
    "budget": "Releases and budget",
    "capacity": "Number of deletions",
    "grade": "Grade",
    "counts": "Record counts",
    "production": "Made for production",
    "policy": "Policy fixed beforehand",
    "log": "Entry of the log",
    "replay": "Answers this request",
    "noiseTag": "Noise used once",
    "model": "Model file",
    "commitments": "Records deleted and retained",
    "evidence": "Distance from the optimum, recomputed",
    "noise": "Size of the noise",
}

WEAK = 0.75


def percent(share: float) -> str:
    r"""A share in percent with one decimal, rounded up; the space does not break.

    >>> percent(0.54711)
    '54.8\xa0%'
    """
    return f"{math.ceil(round(share * 1000, 9)) / 10:.1f}\u00a0%"


def strength(guarantee: Guarantee) -> str:
    """The strength sentence, or what takes its place without a guarantee."""
    if guarantee.kind == "none":
        return "No statement is made about what the published model gives away."
    chance = guarantee.success_probability
    plural = "s" if guarantee.releases_covered > 1 and guarantee.view is not View.afterOnly else ""
    sentence = (
        f"Someone who sees the published model{plural}, and knows all other data and the method, "
        "must tell this from a model trained without the records. No method is right more than "
        f"{percent(chance)} of the time; blind guessing is right 50\u00a0%."
    )
    return sentence + (" This is a weak guarantee." if chance > WEAK else "")


def coverage(guarantee: Guarantee) -> str:
    """Releases, deletions and unit of the claim."""
    releases = 1 if guarantee.view is View.afterOnly else guarantee.releases_covered
    return (
        f"Covers {count(releases, 'release')} together and up to "
        f"{count(guarantee.deletions_covered, 'deleted record')}; the unit of protection is one "
        f"{guarantee.unit}, in a setting where the observer {VIEWS[guarantee.view]}."
    )


def count(number: int, noun: str) -> str:
    """A number with its noun: ``1 record``, ``2,000 records``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def people(number: int) -> str:
    """How many people: ``1 person``, ``2,000 people``."""
    return f"{number:,} people" if number != 1 else "1 person"


def day(moment: datetime) -> str:
    """A date as people write it: 30 November 2026."""
    return f"{moment.day} {moment:%B %Y}"


def phrase(code: str, table: dict[str, str]) -> str:
    """The sentence of a code; an unknown code spelt as words.

    >>> phrase("someNewThing", {})
    'Some new thing'
    """
    if code in table:
        return table[code]
    spelt = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", code).lower()
    return spelt[:1].upper() + spelt[1:]
