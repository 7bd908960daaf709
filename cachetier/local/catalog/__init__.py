"""The catalog: the only truth about what is committed on this node.

``schema`` has its tables. Reads (``*_queries``) and writes are functions of a connection, which
``Store.read`` and ``Store.write`` run: a write in a transaction that ``committer`` shares among
those that arrive together. Decisions are taken inside it, by the pure rules of ``model``.
"""
