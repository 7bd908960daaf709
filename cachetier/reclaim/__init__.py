"""Reclaim what may go: bytes for room or by policy, garbage, abandoned saves."""
