"""A cluster of nodes that restore one step together.

``make peers`` tells the story.
"""
