"""Bring a save into the bucket: claim its step, write its parts, publish it, delete it."""
