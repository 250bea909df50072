"""Images as tensors (n, ...), normalised as published; what is missing is named."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.io import loadmat
from torch import Tensor

from expunge.datasets import Split
from expunge.errors import DataMissing, InvalidInput

_CIFAR_SHA256 = "c4fea52fc0331c62d4776ef3f3f8223b9e75678bb5a1f09f0fd7bc3bda8382f9"


@dataclass(frozen=True, repr=False)
class Images:
    """Training and test images in float32 with labels from 0."""

    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor
    source: str

    def __repr__(self) -> str:
        return f"Images({tuple(self.X.shape)}, {tuple(self.X_test.shape)}, {self.source})"

    def some(self, train: int | None, test: int | None = None) -> Images:
        """Return so many images, the same ones whenever asked; all for None."""
        parts = []
        for X, y, count in ((self.X, self.y, train), (self.X_test, self.y_test, test)):
            order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:count]
            parts += [X, y] if count is None else [X[order], y[order]]
        return Images(*parts, self.source)


def flat(split: Split) -> Images:
    """Return rows of pixels in [0, 1], normalised by MNIST's mean and deviation."""
    X, X_test = (torch.tensor((a - 0.1307) / 0.3081).float() for a in (split.X, split.X_test))
    return Images(X, torch.tensor(split.y), X_test, torch.tensor(split.y_test), split.source)


def cifar10_jpeg(path: Path, train: int | None = None, test: int | None = None) -> Images:
    """Read JPEG copies of CIFAR-10: bytes one after the other, and where each image begins.

    Parameters
    ----------
    path : Path
        The file cifar10-jpeg.npz. For experiments only: not to be redistributed.
    train, test : int, optional
        How many images to decode.
    """
    if not path.is_file():
        raise DataMissing(f"{path} is missing: --cifar takes the file cifar10-jpeg.npz")
    if hashlib.sha256(path.read_bytes()).hexdigest() != _CIFAR_SHA256:
        raise InvalidInput(f"{path} is not the expected cifar10-jpeg.npz (SHA-256 differs)")
    with np.load(path, allow_pickle=False) as arrays:
        X, y = decoded(*(arrays[f"train_{key}"] for key in ("jpeg", "offset", "label")), train)
        X_test, y_test = decoded(
            *(arrays[f"test_{key}"] for key in ("jpeg", "offset", "label")), test
        )
    return Images(X, y, X_test, y_test, "CIFAR-10 (JPEG copies)")


def decoded(
    raw: np.ndarray, offset: np.ndarray, label: np.ndarray, limit: int | None
) -> tuple[Tensor, Tensor]:
    """Return the first images (n, 3, h, w) and labels of a block of JPEG files."""
    from PIL import Image

    count = len(label) if limit is None else min(limit, len(label))
    block = raw.tobytes()
    pixels = [
        np.asarray(Image.open(io.BytesIO(block[offset[i] : offset[i + 1]])).convert("RGB"))
        for i in range(count)
    ]
    return centred(np.stack(pixels)), torch.tensor(label[:count].astype(np.int64))


def svhn(folder: Path) -> Images:
    """Read SVHN's cropped digits [Netzer, 2011]: ``train_32x32.mat`` and ``test_32x32.mat``."""
    parts = [part for name in ("train", "test") for part in read_mat(folder / f"{name}_32x32.mat")]
    return Images(*parts, "SVHN")


def read_mat(path: Path) -> tuple[Tensor, Tensor]:
    """Return images (n, 3, h, w) and labels (n,) of a file in SVHN's format.

    That is ``X`` of h × w × 3 × n bytes, and ``y`` of n × 1 labels from 1 to 10, 10 being digit 0.

    Raises
    ------
    DataMissing, InvalidInput
        If there is no file, or it holds something else.
    """
    if not path.is_file():
        raise DataMissing(f"{path} is missing: --svhn takes the folder of SVHN's .mat files")
    try:
        found = loadmat(path, variable_names=["X", "y"])
        X, y = found["X"], found["y"].ravel().astype(np.int64)
    except (ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise InvalidInput(f"{path} is no file in SVHN's format: {error}") from None
    wrong = X.ndim != 4 or X.shape[2] != 3 or X.dtype != np.uint8 or X.shape[3] != len(y)
    if wrong or not len(y) or not 1 <= y.min() <= y.max() <= 10:
        raise InvalidInput(
            f"{path} must hold X (h, w, 3, n) of bytes and n labels y from 1 to 10; X is "
            f"{X.dtype} {X.shape}, y has {len(y)} labels"
        )
    return centred(X.transpose(3, 0, 1, 2)), torch.tensor(y % 10)


def centred(pixels: np.ndarray) -> Tensor:
    """Return bytes (n, h, w, 3) as numbers from −1 to 1, (n, 3, h, w)."""
    return torch.tensor(pixels.transpose(0, 3, 1, 2)).float() / 127.5 - 1.0
