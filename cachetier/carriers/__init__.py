"""Processes that carry the bytes of large requests: one process decides, several send.

``pool`` is the side of the process that decides, and ``process`` is a carrier. ``checked_file`` is
what both read: a range of a data file whose blocks are checked while it is sent.

Source: docs/design/0049-carriers.md.
"""
