"""How a scenario is run: once, under many schedules, again under a recorded schedule, or many times to measure it."""
