"""A readable distributed data parallel engine, bucketed and device-agnostic.

Level 5 of the layout, beside `simulator.api`: it is written against plain `torch.distributed` and never imports
`simulator`, so that the same engine runs simulated, on real gloo and on GPUs.

Here will live the engine's Module, the pure bucket plan, the reducer and its rebuild, unused parameters, communication
hooks, broadcast, buffer synchronisation, verification, and join.
"""
