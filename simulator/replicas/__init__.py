"""check="replicas": compares the parameters, buffers, gradients and optimizer state of a model across its ranks."""
