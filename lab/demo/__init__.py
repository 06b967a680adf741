"""An article's experiment on one machine: a replica is added under kept-alive load, and gets its share at once."""
