"""The doors of the service, as one transport: one attempt a call, and the wrapper that repeats."""
