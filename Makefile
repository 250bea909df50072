# Two commands on a fresh machine: `make demo` and `make test`. Each sets up what it needs in .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test slow check bench clean

demo: .venv/.demo
	$(BIN)/expunge demo --out demo-out

test: .venv/.test
	$(BIN)/python -m pytest -n auto

slow: .venv/.test
	$(BIN)/python -m pytest -m slow

check: .venv/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/.test
	$(BIN)/python -m bench.convex

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.demo: .venv/bin/python pyproject.toml
	$(PIP) install -e '.[demo]'
	@touch $@

.venv/.test: .venv/bin/python pyproject.toml
	$(PIP) install -e '.[test]'
	@touch $@

.venv/.check: .venv/bin/python pyproject.toml
	$(PIP) install -e '.[test,check]'
	@touch $@

clean:
	rm -rf .venv build dist demo-out .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
