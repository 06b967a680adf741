"""Simulated days of a scaled deployment: jobs, reader, figures, pictures."""
