"""PyTorch: the peer of the eager suite."""

DISTRIBUTIONS = ("torch",)


def tensor_library():
    import torch

    torch.set_num_threads(1)
    return torch
