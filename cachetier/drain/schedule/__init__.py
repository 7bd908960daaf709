"""The scheduler of the drain, its fair queue, the state of the queue, and the tasks."""
