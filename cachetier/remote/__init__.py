"""Object stores behind one interface: ``base`` defines it, ``s3`` speaks it, wrappers add to it.

``factory`` composes them; ``bucket`` reads and writes checkpoints in terms of ``model``.
"""
