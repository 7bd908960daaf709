"""Check a node and its remotes from outside; each finding says what to do about it.

``disk``, ``node`` and ``remote`` have the checks, ``checks`` the table of them all. ``objbench``
and ``nodebench`` measure how fast a remote and a node are.

Whatever a check writes it removes again, and none of them touches the catalog or a checkpoint.
"""
