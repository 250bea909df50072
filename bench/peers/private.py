"""Private training instead of deletion: diffprivlib's logistic regression at the same ε.

``python private.py DATA.npz EPSILON C DRAWS`` prints the seconds and the accuracy of each draw as
JSON. It needs nothing of ours, since diffprivlib may need an older scikit-learn than we do and then
has its own interpreter.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np


@dataclass(frozen=True)
class Private:
    """Seconds and test accuracy of each training, (draws,)."""

    seconds: np.ndarray
    accuracy: np.ndarray


def train(
    python: str, data: dict[str, np.ndarray], epsilon: float, penalty: float, draws: int
) -> Private | None:
    """Train ``draws`` models with the interpreter ``python``; None, and why, if it cannot.

    ``data`` has X, y, X_test and y_test; ``penalty`` is Λ of the sum objective.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        np.savez(path, **data)
        command = [python, __file__, str(path), str(epsilon), str(1.0 / penalty), str(draws)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        print(
            f"diffprivlib is left out: {why}. --diffprivlib takes the Python of an environment "
            "made by: pip install diffprivlib==0.6.6 'scikit-learn<1.7'",
            file=sys.stderr,
        )
        return None
    seconds, accuracy = np.array(json.loads(done.stdout)).T
    return Private(seconds, accuracy)


def main() -> None:
    """Train in this interpreter and print what came out."""
    from diffprivlib.models import LogisticRegression

    path, epsilon, C, draws = sys.argv[1:]
    with np.load(path) as data:
        X, y, X_test, y_test = (data[name] for name in ("X", "y", "X_test", "y_test"))
    norm = float(np.linalg.norm(X, axis=1).max())
    found = []
    for _ in range(int(draws)):
        model = LogisticRegression(
            epsilon=float(epsilon), C=float(C), data_norm=norm, fit_intercept=False
        )
        start = time.perf_counter()
        model.fit(X, y)
        found.append((time.perf_counter() - start, float(model.score(X_test, y_test))))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
