"""What ``torchsnapshot`` writes: ``.snapshot_metadata`` and the files that it describes."""
