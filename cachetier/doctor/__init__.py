"""Looks at a node and its remotes from outside, and says what to do about what is wrong.

``disk``, ``node`` and ``remote`` judge: pure functions from what was measured to a ``Finding``.
The modules beside them measure. ``checks`` has the table of all checks. ``objbench`` and
``nodebench`` measure how fast a remote and a node are.

Whatever a check writes it removes again, and none of them touches the catalog or a checkpoint.
"""
