"""Events, metrics and traces: each declared once; the log is written from events."""
