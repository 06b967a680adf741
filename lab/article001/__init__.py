"""Experiments of the article about 502s, limits and uWSGI behind Kubernetes Services."""
