"""Let profiles take no time, in tests and in the commands that they start: what they measure does not matter there.

A test whose profile should be measured as a user's is sets these for itself.
"""

from __future__ import annotations

import heterps.launch.job
import heterps.profiling.job
import heterps.profiling.servers

heterps.launch.job.QUICK_PROFILE_S = 0.0
heterps.profiling.job.READING_S = 0.0
heterps.profiling.servers.MOST_ROWS = 1000
