"""The node's figures at one instant, from which status, ``top`` and Prometheus are made."""
