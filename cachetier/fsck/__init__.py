"""Check a node: data files against the catalog against the remotes; repair what can be.

Looking changes nothing, so it may be done beside a running service. Repairing needs the cache
directory for itself, and uses the service's own operations.
"""
