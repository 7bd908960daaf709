"""What to drain next: a pure decision over a snapshot of what is unfinished."""
