"""The console's pages at ``/`` and ``/console/``: who may see what, live updates, and actions.

What the pages say is decided in ``cachetier.console``; here the node is asked, and answered.
"""
