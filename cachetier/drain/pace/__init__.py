"""How fast one remote may be asked: rates that follow its answers, and a circuit breaker."""
