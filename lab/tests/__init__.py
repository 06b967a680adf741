"""Tests of the lab. They need only the standard library, so that they run before any installation."""
