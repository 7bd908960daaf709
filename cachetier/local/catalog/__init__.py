"""The catalog: the only truth about what is committed. Nothing else speaks SQL."""
