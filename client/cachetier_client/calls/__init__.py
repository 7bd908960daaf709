"""The common frame of every call, and the calls about runs and steps."""
