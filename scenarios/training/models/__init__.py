"""The networks that scenarios train: small by default, of adjustable size, with initial values drawn from a seed.

`make_network` builds a network by name, `make_meta_network` without values; `NETWORKS` lists all. The keyword
parameters of a network's class are its options.
"""

from ddpsim.scenarios.training.models.catalog import NETWORKS, NetworkOptionError, make_meta_network, make_network
from ddpsim.scenarios.training.models.network import Network
from ddpsim.scenarios.training.models.normalized import SyncBatchNorm

__all__ = ["NETWORKS", "Network", "NetworkOptionError", "SyncBatchNorm", "make_meta_network", "make_network"]
