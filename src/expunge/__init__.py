"""Remove people's data from trained models, and hand over a certificate that anybody can check."""

__version__ = "0.1.0"
