"""The profiler by PyTorch's older name: `profile`, `record_function`, `emit_nvtx`."""

from probtorch.profiler import emit_nvtx, profile, record_function

__all__ = ["emit_nvtx", "profile", "record_function"]
