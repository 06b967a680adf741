"""A day of a deployment that is scaled, as the simulator passes it: reading, figures, pictures."""
