"""Lua Torch's layers and optimizers are not here: importing this says where their heirs are."""

raise ImportError(
    "probtorch.legacy\n"
    "  expected: probtorch.nn for layers and losses, probtorch.optim for optimizers\n"
    "  got:      the name of PyTorch's port of Lua Torch, which PyTorch took out in 0.5\n"
    "  fix:      import probtorch.nn and probtorch.optim; their classes have the same names"
)
