"""Side-by-side measurements; every module runs with ``python -m bench.NAME [--quick]``."""
