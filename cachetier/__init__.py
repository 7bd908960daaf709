"""cachetier: a node-local write-back cache tier for training checkpoints."""

__version__ = "0.1.0"
