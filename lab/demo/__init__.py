"""`make demo`: article 000 on one machine. A replica is added under kept-alive load, and gets its share at once."""
