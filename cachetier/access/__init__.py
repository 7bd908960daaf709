"""Access control at every door: principals, the table of operations, tokens, and the audit log.

A door finds out who calls (``Access.peer``, ``Access.bearer``) and does each request inside
``Access.doing``, which judges it by one table and writes it down.
"""
