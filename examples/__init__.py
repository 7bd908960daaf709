"""Runnable examples: `first_put.py` is ten lines, `demo/` is a training job that survives."""
