"""The side of ``serve``: keeps drain processes running, hands them tasks, records their reports."""
