"""What »Fixing Kubernetes Load Balancing with HTTP/3« (April 2026) ran: its application and its Locust users."""
