"""Article 003: the way of packets to a Service of type LoadBalancer, and what it costs if its address is elsewhere."""
