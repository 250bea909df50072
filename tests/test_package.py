"""The built wheel in an empty environment, and what importing costs."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "dask", "matplotlib", "sklearn", "scipy", "pandas", "pyarrow", "numpy")


def run(*command: object, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def loaded(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*(n for n in {HEAVY!r} if n in sys.modules))"
    return set(run(sys.executable, "-c", code).split())


def test_importing_is_light():
    assert loaded("import expunge") == set()
    assert loaded("import expunge.linear") == set()
    assert loaded("import expunge.cli") == set()


def test_the_engine_and_the_recheck_do_without_scikit_learn():
    assert "sklearn" not in loaded("import expunge.linear.lineage, expunge.folder.operations")
    assert "sklearn" not in loaded("import expunge.certificate.recheck")


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    where = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run(*pip, "wheel", "--no-deps", "--wheel-dir", where, ROOT)
    venv.create(where / "env", with_pip=True)
    python = where / "env" / "bin" / "python"
    run(python, *pip[1:], "install", next(where.glob("*.whl")))
    return python


def test_the_wheel_works_with_its_declared_dependencies_only(empty, tmp_path):
    assert "pytest" not in run(empty, "-m", "pip", "list", cwd=tmp_path)
    program = """
import pkgutil, importlib, expunge
for module in pkgutil.walk_packages(expunge.__path__, "expunge."):
    torch = module.name.startswith(("expunge.deep", "expunge.audit.networks"))
    if not module.name.endswith("__main__") and not torch:
        importlib.import_module(module.name)
from expunge.linear import Ridge
import numpy as np
X = np.random.default_rng(0).standard_normal((50, 3))
model = Ridge().fit(X, X[:, 0])
print(model.unlearn(X[:2], X[:2, 0]).grade)
"""
    assert run(empty, "-c", program, cwd=tmp_path).strip() == "certified"
    assert "Usage" in run(empty.parent / "expunge", "--help", cwd=tmp_path)
