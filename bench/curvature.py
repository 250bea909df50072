"""Inverse-Hessian products beside pyDVL and curvlinops: ``python -m bench.curvature [--quick]``.

Prints ``name<TAB>value<TAB>unit`` lines. Every contestant runs in a process of its own, one thread,
float32 weights, the same network, records, damping and right-hand side (the gradient of one
record); nobody's own residual is believed: it is recomputed here by double backward in float64. A
case that has taken longer than ``LIMIT`` seconds is given up. Times are seconds of the processor,
medians of cold solutions: the operator is built anew for each.

The peers must not replace torch, and pyDVL asks for an older numpy than it needs::

    pip install --no-deps curvlinops-for-pytorch backpack-for-pytorch einops einconv \\
        linear_operator opt_einsum tqdm unfoldNd
    pip install --no-deps pyDVL pyDeprecate more-itertools zarr donfig google-crc32c numcodecs
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from bench.convex import show
from expunge.deep.curvature import Operator
from expunge.deep.inverse import cg, direct, lissa, nystrom_cg, sketch
from expunge.deep.network import view
from expunge.deep.spectrum import lanczos

TARGET = 0.01
"""True relative residual to be reached."""

DAMPING = ("0.1", "0.03")
LIMIT = 600
BATCH, STEPS = 128, 330

LOSS = partial(F.cross_entropy, reduction="none")


def mlp() -> nn.Module:
    """Return 64-32-32-10, tanh: 3,466 parameters."""
    return nn.Sequential(
        nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 10)
    )


def cnn() -> nn.Module:
    """Return two convolutions and a linear layer: 3,818 parameters."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(8, 16, 3, padding=1, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


NETS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "cnn": cnn}


@dataclass(frozen=True)
class Setting:
    """A trained network, its records, and a right-hand side (p,)."""

    net: nn.Module
    X: Tensor
    y: Tensor
    b: Tensor

    def operator(self, kind: Any = "hessian", **options: Any) -> Operator:
        """Return ours."""
        return Operator(kind, view(self.net), LOSS, (self.X, self.y), **options)

    def loader(self, rows: int) -> Any:
        """Return the records for pyDVL."""
        return DataLoader(TensorDataset(self.X, self.y), batch_size=rows)

    def batches(self, rows: int) -> list[tuple[Tensor, Tensor]]:
        """Return the records for curvlinops."""
        return list(zip(self.X.split(rows), self.y.split(rows), strict=True))


def setting(name: str, rows: int) -> Setting:
    """Return a network trained on digits for 330 steps, the same in every process."""
    torch.manual_seed(0)
    X, y = load_digits(return_X_y=True)
    X, y = torch.tensor(X[:rows] / 16, dtype=torch.float32), torch.tensor(y[:rows])
    net = NETS[name]()
    optimiser = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(STEPS * BATCH // rows):
        for part in torch.randperm(rows).split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(net(X[part]), y[part]).backward()
            optimiser.step()
    net.eval()
    b = flat(torch.autograd.grad(F.cross_entropy(net(X[:1]), y[:1]), list(net.parameters())))
    return Setting(net, X, y, b)


def flat(pieces: Any) -> Tensor:
    """Return tensors as one vector."""
    return torch.cat([piece.reshape(-1) for piece in pieces])


def true_residual(s: Setting, x: Tensor, damping: float) -> float:
    """Return ``‖(∇²L + λI)x − b‖/‖b‖`` in float64, by double backward over all records."""
    parameters = [p.double() for p in s.net.double().parameters()]
    x, b = x.detach().double().reshape(-1), s.b.double()
    value = F.cross_entropy(s.net(s.X.double()), s.y)
    slope = flat(torch.autograd.grad(value, parameters, create_graph=True))
    Hx = flat(torch.autograd.grad(slope @ x, parameters))
    s.net.float()
    return float((Hx + damping * x - b).norm() / b.norm())


def ours(solver: Any) -> Callable[[Setting, float], Tensor]:
    """Return one of our solvers as a contestant."""

    def solve(s: Setting, damping: float) -> Tensor:
        return solver(damping).solve(s.operator(), s.b, strict=False).value

    return solve


def ours_nystrom(s: Setting, damping: float) -> Tensor:
    """Solve with a sketch of the Gauss-Newton matrix, which is paid for here."""
    made = sketch(s.operator("ggn"), len(s.b), 20)
    found = nystrom_cg(damping, tol=TARGET, sketch=made).solve(s.operator(), s.b, strict=False)
    return found.value


def pydvl(method: str, rows: int | None, **options: Any) -> Callable[[Setting, float], Tensor]:
    """Return pyDVL's ``CgInfluence`` or ``LissaInfluence``, all else its default."""

    def solve(s: Setting, damping: float) -> Tensor:
        from pydvl.influence import torch as influence

        logging.getLogger("pydvl").setLevel(logging.ERROR)
        model = getattr(influence, method)(
            s.net, F.cross_entropy, regularization=damping, **options
        )
        model.fit(s.loader(rows or len(s.X)))
        return model.influence_factors(s.X[:1], s.y[:1]).detach()

    return solve


def pydvl_stopped(s: Setting, damping: float) -> Callable[[Setting, float], Tensor]:
    """Return pyDVL's CG with the fewest iterations that reach the target, which it is told."""
    near = cg(damping, TARGET).solve(s.operator(), s.b).iterations
    for limit in range(max(1, near - 3), 400):
        run = pydvl("CgInfluence", None, maxiter=limit, warn_on_max_iteration=False)
        if true_residual(s, run(s, damping), damping) <= TARGET:
            return run
    raise RuntimeError("not within 400 iterations")


def curvlinops(rows: int | None) -> Callable[[Setting, float], Tensor]:
    """Return curvlinops' CG with the tolerance asked for."""

    def solve(s: Setting, damping: float) -> Tensor:
        import curvlinops as c
        from curvlinops.examples import IdentityLinearOperator

        parameters = list(s.net.parameters())
        H = c.HessianLinearOperator(
            s.net,
            nn.CrossEntropyLoss(),
            parameters,
            s.batches(rows or len(s.X)),
            check_deterministic=False,
        )
        shapes = [p.shape for p in parameters]
        A = H + damping * IdentityLinearOperator(shapes, s.b.device, s.b.dtype)
        inverse = c.CGInverseLinearOperator(A, tolerance=TARGET, max_iter=1000, max_tridiag_iter=0)
        return inverse @ s.b

    return solve


CONTESTANTS: dict[str, Callable[[Setting, float], Tensor]] = {
    "ours_cg": ours(partial(cg, tol=TARGET)),
    "ours_nystrom": ours_nystrom,
    "ours_lissa": ours(lissa),
    "curvlinops_cg_whole": curvlinops(None),
    "curvlinops_cg_128": curvlinops(BATCH),
    "pydvl_cg_whole": pydvl("CgInfluence", None),
    "pydvl_cg_128": pydvl("CgInfluence", BATCH),
    "pydvl_cg_whole_told_when_to_stop": lambda s, damping: pydvl_stopped(s, damping)(s, damping),
    "pydvl_lissa_128": pydvl("LissaInfluence", BATCH),
}
"""By default pyDVL's CG runs until ‖r‖ < rtol²·|b₀| = 1e-8·|b₀|; its LiSSA takes 1,000 steps."""


def peak() -> int:
    """Return the largest resident memory in bytes since `restart_peak`, on Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def restart_peak() -> int:
    """Give freed memory back, forget the largest until now; return the present one."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def measure(label: str, rows: int) -> None:
    """Print time, true residual and memory of one contestant: ``net:damping:contestant``."""
    name, damping, who = label.split(":")
    s, value = setting(name, rows), float(damping)
    solve = CONTESTANTS[who]
    if who == "pydvl_cg_whole_told_when_to_stop":
        solve = pydvl_stopped(s, value)
    true_residual(s, s.b, value)
    before = restart_peak() if sys.platform == "linux" else None
    seconds: list[float] = []
    while len(seconds) < 7 and sum(seconds) < 5:
        start = time.process_time()
        x = solve(s, value)
        seconds.append(time.process_time() - start)
    after = None if before is None else peak()
    line = (name, damping, who)
    show(*line, "seconds", value=statistics.median(seconds), unit="s")
    show(*line, "residual", value=true_residual(s, x, value), unit="")
    if before is not None and after is not None and solve is CONTESTANTS[who]:
        show(*line, "memory", value=(after - before) / 1e6, unit="MB")


def milliseconds(f: Callable[[], Any], repeats: int = 20) -> float:
    """Return the median time of a call, after two more."""
    seconds = []
    for _ in range(repeats + 2):
        start = time.process_time()
        f()
        seconds.append(time.process_time() - start)
    return 1e3 * statistics.median(seconds[2:])


def products(name: str, rows: int) -> None:
    """Print the time of one product with the Hessian and the Gauss-Newton matrix."""
    s = setting(name, rows)
    parameters, v = list(s.net.parameters()), torch.randn(len(s.b))

    def gradient() -> Any:
        return torch.autograd.grad(F.cross_entropy(s.net(s.X), s.y), parameters)

    def line(who: str, f: Callable[[], Any]) -> None:
        show(name, "product", who, value=milliseconds(f), unit="ms")

    line("gradient", gradient)
    for kind in ("hessian", "ggn"):
        for how, options in (
            ("kept", {}),
            ("not_kept", {"memory": 0}),
            ("kept_float64", {"at": view(s.net).vector().double()}),
        ):
            operator = s.operator(kind, **options)
            line(f"ours_{kind}_{how}", partial(operator, v))
    with_peer(lambda: peer_products(s, v, line))


def peer_products(s: Setting, v: Tensor, line: Callable[[str, Callable[[], Any]], None]) -> None:
    """Print the time of their products, all records in one batch."""
    import curvlinops as c
    from pydvl.influence.torch.operator import HessianOperator

    for name, kind in (("hessian", c.HessianLinearOperator), ("ggn", c.GGNLinearOperator)):
        A = kind(
            s.net,
            nn.CrossEntropyLoss(),
            list(s.net.parameters()),
            s.batches(len(s.X)),
            check_deterministic=False,
        )
        line(f"curvlinops_{name}", lambda A=A: A @ v)
    H = HessianOperator(s.net, F.cross_entropy, s.loader(len(s.X)))
    line("pydvl_hessian", lambda: H.apply(v))


def with_peer(f: Callable[[], None]) -> None:
    """Run ``f``; say how to install what it misses."""
    try:
        f()
    except ImportError as error:
        sys.stderr.write(f"left out: {error}; see the top of bench/curvature.py\n")


def growth(name: str, rows: int) -> None:
    """Print how iterations grow as the damping of the Gauss-Newton matrix falls."""
    s = setting(name, rows)
    ends = lanczos(s.operator().exact(), len(s.b))
    show(name, "hessian_smallest", value=ends.smallest, unit="")
    show(name, "hessian_largest", value=ends.largest, unit="")
    operator = s.operator("ggn")
    for damping in (1e-1, 1e-2, 1e-3, 1e-4):
        for tol in (1e-2, 1e-8):
            for who, solver in (
                ("cg", cg(damping, tol)),
                ("nystrom_50", nystrom_cg(damping, tol, rank=50)),
                ("nystrom_200", nystrom_cg(damping, tol, rank=200)),
            ):
                found = solver.solve(operator, s.b)
                line = (name, "ggn", f"{damping:g}", f"{tol:g}", who)
                show(*line, "iterations", value=found.iterations, unit="")


def columns(name: str, rows: int) -> None:
    """Print the seconds of sixteen right-hand sides at once, λ = 1e-3, to 1e-8."""
    s = setting(name, rows)
    B = torch.randn(len(s.b), 16)
    for who, solver in (
        ("cg", cg(1e-3)),
        ("nystrom_200", nystrom_cg(1e-3, rank=200)),
        ("direct", direct(1e-3)),
    ):
        start = time.process_time()
        solver.solve(s.operator("ggn"), B)
        show(name, "sixteen", who, value=time.process_time() - start, unit="s")


PARTS = {"products": products, "growth": growth, "columns": columns}


def run(options: argparse.Namespace, label: str) -> dict[str, float]:
    """Run one case in a process of its own; print and return its lines."""
    quick = ["--quick"] if options.quick else []
    command = [sys.executable, "-m", "bench.curvature", "--case", label, *quick]
    try:
        done = subprocess.run(
            command,
            check=True,
            cwd=Path(__file__).parent.parent,
            timeout=LIMIT,
            stdout=subprocess.PIPE,
            text=True,
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"left out: {label}: {error}\n")
        return {}
    sys.stdout.write(done.stdout)
    sys.stdout.flush()
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return {row[0]: float(row[1]) for row in rows if len(row) == 3}


def race(options: argparse.Namespace, name: str, damping: str) -> None:
    """Run all contestants; print how many times faster than each our CG is."""
    found: dict[str, float] = {}
    for who in CONTESTANTS:
        found |= run(options, f"{name}:{damping}:{who}")
    own = found.get(f"{name}.{damping}.ours_cg.seconds", float("nan"))
    for who in CONTESTANTS:
        seconds = found.get(f"{name}.{damping}.{who}.seconds")
        if seconds is not None and who != "ours_cg":
            show(name, damping, "ours_cg", "times_faster_than", who, value=seconds / own, unit="")


def main() -> None:
    """Run every case in a process of its own, or one here."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="256 records, the MLP, one damping")
    parser.add_argument("--case", help="NET:DAMPING:CONTESTANT or NET:PART")
    options = parser.parse_args()
    rows = 256 if options.quick else 11 * BATCH
    if options.case:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        name, _, part = options.case.partition(":")
        if part in PARTS:
            PARTS[part](name, rows)
        else:
            with_peer(lambda: measure(options.case, rows))
        return
    for name in ["mlp"] if options.quick else NETS:
        for part in PARTS if name == "mlp" and not options.quick else ["products"]:
            run(options, f"{name}:{part}")
        for damping in DAMPING[: 1 if options.quick else None]:
            race(options, name, damping)


if __name__ == "__main__":
    main()
