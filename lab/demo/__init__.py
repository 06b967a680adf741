"""`make demo`: article 000 on one machine. A replica joins under keep-alive load and gets its share at once."""
