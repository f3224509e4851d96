"""What PyTorch scripts ask of and tell to libraries that are not used here, cuDNN aside.

``torch.backends.mps.is_available()`` chooses a device, ``torch.backends.cuda.matmul.allow_tf32``
allows fewer digits. None of these is there: the answers are False, and the flags change nothing.
"""

from __future__ import annotations

__all__ = ["cuda", "mkl", "mkldnn", "mps", "openmp"]


class _Absent:
    """A library that is not used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def is_available(self) -> bool:
        """Whether it is used: never."""
        return False

    def is_built(self) -> bool:
        """Whether it is part of probtorch: no."""
        return False

    def __repr__(self) -> str:
        return f"<{self._name}, which probtorch does not use>"


class _Products:
    """Flags of matrix products on a GPU, which change nothing: float32 keeps its digits."""

    def __init__(self) -> None:
        self.allow_tf32 = False
        self.allow_fp16_reduced_precision_reduction = False
        self.allow_bf16_reduced_precision_reduction = False


class _Cuda(_Absent):
    """CUDA as PyTorch is built with it; `probtorch.cuda` says whether there is a GPU."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.matmul = _Products()


cuda = _Cuda("cuda")
mkl, mkldnn = _Absent("mkl"), _Absent("mkldnn")
mps, openmp = _Absent("mps"), _Absent("openmp")
