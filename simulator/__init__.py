"""The simulator: what ranks ask of each other, matched, scheduled, diagnosed. `ddpsim` itself is its front door."""
