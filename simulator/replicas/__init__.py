"""check="replicas": parameters, buffers, gradients and optimizer state compared across ranks."""
