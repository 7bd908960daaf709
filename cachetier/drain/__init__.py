"""Carry shards from this node to the remote, in a process of its own, behind training.

In ``serve``: ``supervisor`` keeps the process running, ``service`` answers it over ``channel``,
``scheduler`` decides what is next from a ``snapshot`` of the catalog and its ``queue_state``.
In the drain: ``process`` starts it with ``courtesy``, ``loop`` asks for work, ``worker`` does it
with ``source`` (local bytes, checked), ``upload`` (one shard) and ``publisher`` (whole saves).
"""
