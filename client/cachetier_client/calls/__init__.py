"""What every call has in common, and what a client can ask about runs and steps."""
