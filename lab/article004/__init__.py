"""Article 004: page loads over HTTP/1.1, 2 and 3, by a browser at a short or a long distance."""
