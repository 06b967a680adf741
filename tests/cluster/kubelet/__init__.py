"""A kubelet whose pods are processes in namespaces, without images and registries."""
