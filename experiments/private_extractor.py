"""A small convolutional network trained with differential privacy (Opacus); its last layer's input.

Not imported unless torch and opacus are installed: ``pip install torch opacus``.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from expunge.linear.guo import Extractor

DELTA = 1e-5
WIDTH = 64


def private_features(
    X: np.ndarray, y: np.ndarray, X_test: np.ndarray, *, epochs: int = 5, noise: float = 1.5
) -> tuple[np.ndarray, np.ndarray, Extractor]:
    """Train on images (n, 784) with labels 0/1; return features (n, 64) and the privacy spent.

    Poisson batches of 256 on average, clipped at 1, ``noise`` the noise multiplier. The (ε₁, δ₁) is
    what Opacus's accountant says: a fact given to the mechanism, not proved by it. Opacus's default
    noise is not cryptographically secure.
    """
    body = nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 16, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Conv2d(16, 16, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16 * 49, WIDTH),
        nn.Tanh(),
    )
    model = nn.Sequential(body, nn.Linear(WIDTH, 2))
    images = torch.tensor(X, dtype=torch.float32)
    loader = DataLoader(TensorDataset(images, torch.tensor(y)), batch_size=256)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = PrivacyEngine()
        model, optimiser, loader = engine.make_private(
            module=model,
            optimizer=optimiser,
            data_loader=loader,
            noise_multiplier=noise,
            max_grad_norm=1.0,
        )
        for _ in range(epochs):
            for batch, label in loader:
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(batch), label).backward()
                optimiser.step()
        spent = Extractor(float(engine.get_epsilon(DELTA)), DELTA)
    body.eval()
    with torch.no_grad():
        found = [
            body(torch.tensor(rows, dtype=torch.float32)).double().numpy() for rows in (X, X_test)
        ]
    return found[0], found[1], spent
