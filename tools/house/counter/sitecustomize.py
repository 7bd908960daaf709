"""Has Python count from its start: see ``tools.house.counting``."""

import tools.house.counting  # noqa: F401
