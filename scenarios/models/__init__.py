"""The networks that scenarios train: small by default, adjustable upwards, initialised from a seed.

`make` builds one by name; `NETWORKS` lists them. The keyword parameters of a network's class are its options.
"""

from scenarios.models.catalog import NETWORKS, make
from scenarios.models.network import Network
from scenarios.models.normalized import SyncBatchNorm

__all__ = ["NETWORKS", "Network", "SyncBatchNorm", "make"]
