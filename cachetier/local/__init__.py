"""This node's disk: data files, the catalog, and start-up. Nothing else touches ``cache_dir``.

``store`` keeps files and catalog in step; ``catalog`` is the database, its schema, what reads it
and what writes it; ``recovery`` opens a directory, and refuses one that may have lost something.
"""
