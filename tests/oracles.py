"""Independent truths: minimisers in extended precision; the data sets of the theory's vectors."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits, load_iris

STACKED = {"logistic-ovr": "logistic", "squared-hinge": "squared-hinge", "huber": "huber"}


def minimiser(X, target, weight, loss, l2, intercept, l1=0.0):
    """Return the minimiser (p, C) of the penalised sum objective, to about 1e-14 relative.

    A damped Newton iteration with gradients in extended precision, unlike the engine's; for squared
    hinge and Huber loss it ends when the active rows no longer change. With ``l1`` > 0 and squared
    loss: the elastic net, see `elastic_net`.
    """
    X = np.asarray(X, dtype=np.longdouble)
    if intercept:
        X = np.hstack([X, np.ones((len(X), 1), dtype=np.longdouble)])
    columns = [target[:, k : k + 1] for k in range(target.shape[1])]
    if l1 > 0:
        return np.hstack([elastic_net(X, y, weight, l2, l1, intercept) for y in columns])
    if loss in STACKED:
        loss = STACKED[loss]
        return np.hstack([_minimise(X, y, weight, loss, l2, intercept) for y in columns])
    return _minimise(X, target, weight, loss, l2, intercept)


def _minimise(X, target, weight, loss, l2, intercept):
    penalty = np.full((X.shape[1], 1), l2, dtype=np.longdouble)
    if intercept:
        penalty[-1] = 0
    W = np.zeros((X.shape[1], target.shape[1]), dtype=np.longdouble)
    value, extra = _value(X, target, weight, loss, penalty, W), 0
    for _ in range(1000):
        gradient, hessian = derivatives(X, target, weight, loss, penalty, W)
        flat = gradient.T.reshape(-1) if loss == "softmax" else gradient
        scale = np.sqrt(np.diagonal(hessian))
        step = np.linalg.solve(hessian / scale[:, None] / scale, (flat.T / scale).T.astype(float))
        step = (step.T / scale).T
        step = step.reshape(W.shape[1], -1).T if loss == "softmax" else step
        if (gradient * step).sum() <= 1e-12 * (1e-6 + abs(value)):
            extra += 1
            W = W - step
            if extra == 5:
                flat = W.mean(axis=1, keepdims=True) if loss == "softmax" else 0
                return (W - flat).astype(np.float64)
            continue
        length = 1.0
        while True:
            trial = W - np.longdouble(length) * step
            new = _value(X, target, weight, loss, penalty, trial)
            if new <= value + 1e-12 * (1 + abs(value)) or length < 1e-9:
                break
            length /= 2
        W, value = trial, new
    raise AssertionError("the oracle did not converge")


def _value(X, target, weight, loss, penalty, W):
    m = X @ W
    if loss == "logistic":
        rows = np.logaddexp(np.longdouble(0), -target * m).sum(axis=1)
    elif loss == "squared":
        rows = ((m - target) ** 2).sum(axis=1) / 2
    elif loss == "squared-hinge":
        rows = (np.maximum(1 - target * m, 0) ** 2).sum(axis=1)
    elif loss == "huber":
        far = np.abs(m - target)
        rows = np.where(far <= 1, far**2 / 2, far - 0.5).sum(axis=1)
    elif loss == "poisson":
        rows = (np.exp(np.minimum(m, 11000)) - target * m).sum(axis=1)
    elif loss == "gamma":
        rows = (target * np.exp(np.minimum(-m, 11000)) + m).sum(axis=1)
    else:
        top = m.max(axis=1)
        rows = np.log(np.exp(m - top[:, None]).sum(axis=1)) + top - (m * target).sum(axis=1)
    return (weight * rows).sum() + (penalty * W * W).sum() / 2


def derivatives(X, target, weight, loss, penalty, W):
    """Return the gradient in extended precision and the Hessian in float64."""
    m = X @ W
    n, K = target.shape
    if loss == "logistic":
        a = 1 / (1 + np.exp(target * m))
        c, h = -target * a, (a * (1 - a))[:, 0]
    elif loss == "squared":
        c, h = m - target, np.ones(n)
    elif loss == "squared-hinge":
        gap = np.maximum(1 - target * m, 0)
        c, h = -2 * target * gap, 2.0 * (gap > 0)[:, 0]
    elif loss == "huber":
        c, h = np.clip(m - target, -1, 1), 1.0 * (np.abs(m - target) <= 1)[:, 0]
    elif loss == "poisson":
        c, h = np.exp(m) - target, np.exp(m)[:, 0]
    elif loss == "gamma":
        c, h = 1 - target * np.exp(-m), (target * np.exp(-m))[:, 0]
    else:
        p = np.exp(m - m.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        c = p - target
    gradient = X.T @ (c * weight[:, None]) + penalty * W
    Z = X.astype(float)
    if loss != "softmax":
        hessian = (Z * (h * weight).astype(float)[:, None]).T @ Z + np.diag(
            penalty[:, 0].astype(float)
        )
        return gradient, hessian
    d = Z.shape[1]
    hessian = np.zeros((K, d, K, d))
    for k in range(K):
        for j in range(K):
            s = (p[:, k] * ((k == j) - p[:, j]) * weight).astype(float)
            hessian[k, :, j, :] = (Z * s[:, None]).T @ Z
        hessian[k, :, k, :] += np.diag(penalty[:, 0].astype(float))
    for j in range(d):
        hessian[:, j, :, j] += max(float(np.trace(hessian[:, j, :, j])), 1.0) / K
    return gradient, hessian.reshape(K * d, K * d)


def elastic_net(X, target, weight, l2, l1, intercept):
    """Return the minimiser (p, 1) of Σ s(xw − y)²/2 + (Λ/2)‖w‖² + ν‖w‖₁, the intercept free.

    Coordinate descent finds the support and the signs; there the system is solved in float64 and
    refined in extended precision, until all conditions of optimality hold.
    """
    A = (X.T * weight) @ X
    b = (X.T @ (target[:, 0] * weight)).astype(np.longdouble)
    p = len(b)
    penalised = np.arange(p) < p - intercept
    A = A + np.diag(l2 * penalised).astype(np.longdouble)
    nu, w = l1 * penalised, np.zeros(p, dtype=np.longdouble)
    for sweep in range(20000):
        for j in range(p):
            rest = b[j] - A[j] @ w + A[j, j] * w[j]
            w[j] = np.sign(rest) * max(abs(rest) - nu[j], 0) / A[j, j] if A[j, j] else 0
        if sweep % 20 == 0:
            found = _on_support(A, b, nu, np.sign(w), (w != 0) | ~penalised)
            if found is not None:
                return found[:, None].astype(np.float64)
    raise AssertionError("the oracle did not converge")


def _on_support(A, b, nu, signs, support):
    """Solve for the given support and signs; None if the solution is not the minimiser."""
    w = np.zeros(len(b), dtype=np.longdouble)
    H = A[np.ix_(support, support)].astype(np.float64)
    for _ in range(8):
        rest = (b - A @ w - nu * signs)[support]
        w[support] += np.linalg.lstsq(H, rest.astype(np.float64), rcond=None)[0]
    slope = b - A @ w
    scale = 1e-13 * (1 + np.abs(b).max())
    outside = (np.abs(slope) <= nu + scale) | support
    same = (np.sign(w) == signs) | ~support | (nu == 0)
    return w if outside.all() and same.all() else None


def digits38():
    """Return the theory's digits38: classes 3 and 8, centred, rows normalised, target ±1."""
    X, y = load_digits(return_X_y=True)
    keep = (y == 3) | (y == 8)
    X = X[keep] / 16 - 0.5
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, np.where(y[keep] == 3, 1.0, -1.0)[:, None]


def iris():
    """Return the theory's iris: standardised, one-hot target."""
    X, y = load_iris(return_X_y=True)
    return (X - X.mean(0)) / X.std(0), np.eye(3)[y]


def digits10():
    """Return the theory's digits10: a constant appended, rows normalised, one-hot target."""
    X, y = load_digits(return_X_y=True)
    X = np.hstack([X / 16, np.ones((len(X), 1))])
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, np.eye(10)[y]
