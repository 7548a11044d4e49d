"""sweetrl: SWEET-RL (arXiv 2503.15478) and its benchmark ColBench as a product."""

__version__ = "0.1.0"
