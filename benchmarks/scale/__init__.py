"""How a node scales with cores: one prepared script for a machine that can be had for minutes.

``make carry`` downloads what the machine needs into ``.scale``; there
``python3 -m benchmarks.scale.bare RESULTS`` measures. ``make scale`` does it here.
"""
