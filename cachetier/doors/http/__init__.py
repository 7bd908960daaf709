"""The HTTP door: ``routes`` for JSON by FastAPI, ``shards`` for bytes by plain ASGI.

``guard`` stands before both (token, names, errors); ``protocol`` adds the deadlines that uvicorn
lacks; ``upload`` and ``download`` move blocks between a body and the node, in bounded memory.
"""
