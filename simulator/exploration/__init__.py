"""Exploration: many executions of one program, each under a schedule that a strategy chooses."""
