"""Runs over several processes: who they are, and what they tell each other.

`communicator.py` says what any transport has to do, `group.py` has PyTorch's names, `launch.py`
makes ranks on one machine, `shards.py` says which rows are whose. Inference over ranks is in
`plate(..., shard=True)` and ``SVI(..., distributed=True)``; docs/guide/large_data.md shows both.
"""

from probtorch.distributed.communicator import Communicator, DistributedError
from probtorch.distributed.group import (
    ReduceOp,
    all_gather_object,
    all_reduce,
    barrier,
    broadcast,
    broadcast_object_list,
    destroy_process_group,
    gather_object,
    get_backend,
    get_rank,
    get_world_size,
    init_process_group,
    is_available,
    is_initialized,
)
from probtorch.distributed.launch import spawn
from probtorch.distributed.shards import local_rows

__all__ = [
    "Communicator",
    "DistributedError",
    "ReduceOp",
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "destroy_process_group",
    "gather_object",
    "get_backend",
    "get_rank",
    "get_world_size",
    "init_process_group",
    "is_available",
    "is_initialized",
    "local_rows",
    "spawn",
]
