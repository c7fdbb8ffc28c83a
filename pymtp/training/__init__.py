"""MTP heads trained for models that have none: one layer that drafts, on what the model itself computes and writes.

Needs the extra `train` (PyTorch). Owns the form of such a head, its data and its training; what it is when it is done
is a file like any other of MTP heads.

from pymtp.training import TrainParams, train_head

train_head("model.gguf", params=TrainParams(minutes=30))  # mtp-model.gguf
"""

from pymtp.training.collect import Progress
from pymtp.training.run import TrainParams, train_head

__all__ = ["Progress", "TrainParams", "train_head"]
