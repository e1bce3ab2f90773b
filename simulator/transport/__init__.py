"""Transports: how bytes move once a slot is full."""
