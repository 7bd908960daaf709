"""The HTTP door: ``routes`` for JSON by FastAPI, ``shards`` for bytes by plain ASGI.

``guard`` stands before both (token, names, errors); ``protocol`` adds the deadlines that uvicorn
lacks, ``server`` accepts, with TLS if that is wanted, and ``slots`` shares the places for large
bodies; ``upload`` and ``download`` move blocks between a body and the node, in bounded memory.
"""
