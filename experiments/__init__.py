"""Experiments of the papers, driven by this library; run with ``python -m experiments.NAME``."""
