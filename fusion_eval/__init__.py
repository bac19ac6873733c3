"""Merge neural networks and prove that the merge is better."""

__version__ = "0.1.0"
