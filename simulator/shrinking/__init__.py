"""Shrinking: from what fails to the simplest that fails in the same way."""
