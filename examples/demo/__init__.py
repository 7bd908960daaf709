"""A training job that loses its processes, then its node, and ends with the same weights.

``make demo`` runs it; README.md beside this explains what it shows. What to copy into a script of
your own is ``checkpointing.py``, and how ``train.py`` calls it.
"""
