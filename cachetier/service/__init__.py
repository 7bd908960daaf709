"""The composition root: build the node, start it, watch it, stop it in order."""
