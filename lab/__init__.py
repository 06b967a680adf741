"""The lab: falsifiable claims about Sheave and its peers."""
