"""The experiment bad-endpoints: scenarios, rows and figures."""
