"""This node's disk: data files, the catalog, and start-up. Nothing else touches ``cache_dir``.

``store`` keeps files and catalog in step; ``catalog`` and ``drain_log`` write via ``committer``,
``queries`` reads; ``recovery`` opens a directory, and refuses one that may have lost something.
"""
