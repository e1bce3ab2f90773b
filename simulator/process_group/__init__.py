"""The process group that torch.distributed and DDP talk to inside a rank."""
