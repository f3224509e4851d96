"""Feeding data to a model: datasets, samplers, and a loader with worker processes.

`dataset` has what can be loaded, `sampler` the orders in which to do it, `collate` the rules that
make one batch of many samples, `worker` the processes that work ahead, and `loader` puts them
together. Names and signatures are PyTorch's.
"""

from probtorch.utils.data.collate import default_collate, default_convert
from probtorch.utils.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    StoredRows,
    Subset,
    TensorDataset,
    random_split,
)
from probtorch.utils.data.loader import DataLoader
from probtorch.utils.data.parquet_ import ParquetDataset
from probtorch.utils.data.sampler import (
    BatchSampler,
    BlockRandomSampler,
    BucketBatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from probtorch.utils.data.stored import ArrayDataset
from probtorch.utils.data.worker import WorkerError, WorkerInfo, get_worker_info

__all__ = [
    "ArrayDataset",
    "BatchSampler",
    "BlockRandomSampler",
    "BucketBatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "IterableDataset",
    "ParquetDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "StoredRows",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerError",
    "WorkerInfo",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "random_split",
]
