"""The lab's own tests: standard library only, so that they run before anything is installed."""
