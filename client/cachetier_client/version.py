"""The client's version, as in its ``pyproject.toml``: asking the installed files takes 10 ms."""

VERSION = "0.1.0"
