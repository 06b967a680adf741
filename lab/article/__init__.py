"""Application and Locust users of »Fixing Kubernetes Load Balancing with HTTP/3« (April 2026)."""
