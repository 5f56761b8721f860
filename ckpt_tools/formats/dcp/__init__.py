"""What ``torch.distributed.checkpoint`` writes: ``.metadata`` and the files that it describes."""
