"""What the article about 502s, limits and uWSGI behind Kubernetes Services ran, as far as it says."""
