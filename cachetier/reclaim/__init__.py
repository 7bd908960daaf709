"""What goes: bytes for room or by policy, rubbish, saves that nobody can complete."""
