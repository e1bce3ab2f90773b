"""Shrinking: finds the simplest program or schedule that fails in the same way."""
