"""Modules that every Python started by a rank or a launcher imports first: they need neither ddpsim nor torch."""
