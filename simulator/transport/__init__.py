"""Transports: how the tensors of a call move between ranks, once all ranks have made the call."""
