"""`SummaryWriter`: curves, histograms and pictures for TensorBoard, through tensorboardX.

tensorboardX writes the files, without TensorFlow and without PyTorch; this class hands it tensors
as arrays. The only file that imports it.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Self

from probtorch.core.tensor_base import TensorBase
from probtorch.errors import FileError

if TYPE_CHECKING:
    import os

__all__ = ["SummaryWriter"]

# What is handed on as it is; `add_graph` would need PyTorch.
_METHODS = (
    "add_audio add_custom_scalars add_custom_scalars_multilinechart add_embedding add_figure "
    "add_hparams add_histogram add_histogram_raw add_image add_image_with_boxes add_images "
    "add_mesh add_pr_curve add_pr_curve_raw add_scalar add_scalars add_text add_video close flush"
).split()


class SummaryWriter:
    """Writes event files that TensorBoard shows.

    Its methods are those of tensorboardX and of ``torch.utils.tensorboard``: ``add_scalar(tag,
    value, global_step)``, `add_scalars`, `add_histogram`, `add_image`, `add_images`, `add_figure`,
    `add_text`, `add_hparams`, `add_embedding`, `add_pr_curve`, `add_mesh`, `add_video`,
    `add_audio`, `flush`, `close`. Tensors among their arguments may require grad and be on a GPU.

    Parameters
    ----------
    log_dir : str or path-like, optional
        The folder, made if it is not there; by default one of ``runs/`` with date and host.
    comment : str
        Added to the name of that folder.
    purge_step : int, optional
        Forget what an earlier run logged from this step on.
    max_queue, flush_secs : int
        Events are written when so many wait, or so many seconds have passed.
    filename_suffix : str

    Raises
    ------
    FileError
        If tensorboardX is not installed.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: int = 120,
        filename_suffix: str = "",
    ) -> None:
        self._writer = _package().SummaryWriter(
            None if log_dir is None else str(log_dir),
            comment=comment,
            purge_step=purge_step,
            max_queue=max_queue,
            flush_secs=flush_secs,
            filename_suffix=filename_suffix,
        )

    @property
    def log_dir(self) -> str:
        """The folder that events are written to."""
        return self._writer.logdir

    def get_logdir(self) -> str:
        """Return the folder that events are written to."""
        return self._writer.logdir

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.close()


def _handing_on(name: str) -> object:
    """The method of that name, with arrays in the place of tensors."""

    def method(self: SummaryWriter, *args: object, **kwargs: object) -> object:
        given = {key: _plain(value) for key, value in kwargs.items()}
        return getattr(self._writer, name)(*map(_plain, args), **given)

    method.__name__, method.__qualname__ = name, f"SummaryWriter.{name}"
    method.__doc__ = f"As `{name}` of tensorboardX."
    return method


for _name in _METHODS:
    setattr(SummaryWriter, _name, _handing_on(_name))


def _plain(x: object) -> object:
    """The same with arrays in the place of tensors."""
    if isinstance(x, TensorBase):
        return x.numpy(force=True)
    if type(x) is list:
        return [_plain(item) for item in x]
    if type(x) is tuple:
        return tuple(_plain(item) for item in x)
    if type(x) is dict:
        return {key: _plain(value) for key, value in x.items()}
    return x


def _package() -> ModuleType:
    try:
        return import_module("tensorboardX")
    except ModuleNotFoundError:
        raise FileError(
            "SummaryWriter",
            expected="the package tensorboardX",
            got="an environment without it",
            fix="pip install 'probtorch[tensorboard]'",
        ) from None
