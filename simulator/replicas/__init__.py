"""check="replicas": compares parameters, buffers, gradients and optimizer state across ranks."""
