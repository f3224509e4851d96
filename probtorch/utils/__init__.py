"""What training scripts need around a model.

`data` feeds it, `checkpoint` computes activations again instead of keeping them, `dlpack` hands
memory to others, `memory` says which tensors are alive, and `tensorboard` logs what happens.
"""

from probtorch.utils import checkpoint, data, dlpack, memory, tensorboard

__all__ = ["checkpoint", "data", "dlpack", "memory", "tensorboard"]
