"""One look at the node, from which status, ``top`` and Prometheus all take their figures."""
