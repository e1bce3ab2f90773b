"""A training on N ranks held against the same training on fewer ranks: what was recorded of both, and the first tensor
that differs."""
