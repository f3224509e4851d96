"""Where the time goes: by operation, by compiled function, by line of the user's program.

`profile` watches a block of code and gives tables and a trace for Chrome. `watching.py` hears of
every operation as it begins and ends, `averages.py` adds up, `session.py` is what people use. What
a compiled program does inside is another question: `compiled.explain(profile=True)`.
"""

from probtorch.profiler.averages import AverageEvent, AverageEvents
from probtorch.profiler.nvtx import emit_nvtx
from probtorch.profiler.session import (
    ProfilerAction,
    ProfilerActivity,
    profile,
    schedule,
)
from probtorch.profiler.watching import ProfilerEvent, record_function

__all__ = [
    "AverageEvent",
    "AverageEvents",
    "ProfilerAction",
    "ProfilerActivity",
    "ProfilerEvent",
    "emit_nvtx",
    "profile",
    "record_function",
    "schedule",
]
