"""The catalog: the only truth about what is committed on this node.

``schema`` has its tables; a module is named after the rows that it reads and writes. Its functions
take a connection, which ``Store.read`` and ``Store.write`` lend: a write runs in a transaction that
``committer`` shares among those that arrive together. Decisions are taken inside it, by the pure
rules of ``model``.
"""
