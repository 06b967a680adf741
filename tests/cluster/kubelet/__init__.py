"""A kubelet whose pods are processes: what is bound to its node runs in namespaces, with no image and no registry."""
