"""The lab: claims about Sheave and its peers that a run can refute."""
