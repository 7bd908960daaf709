"""A catalog opened from outside: to look at, to check, to repair, to begin again."""
