"""Checkpoints of other people's trainers: a module for each, imported where its framework is."""
