"""What people read after a run: text, HTML, JSON, Chrome trace and JUnit documents, computed from a trace.

Level 4 of the layout: it reads only the simulator's values of levels 0 and 1 (trace, verdict, result, errors and the
like), never live objects, and does not import torch.

Here will live the document model, the pure layout of rank lanes, and one writer per format.
"""
