"""Many nodes before one object store, simulated: the real pace, a clock that costs nothing.

Discrete events, no sockets and no sleeps; the same seed gives the same run.
"""
