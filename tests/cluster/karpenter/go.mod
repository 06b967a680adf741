// An autoscaler of nodes for the test cluster.
module sheave.dev/tests/cluster/karpenter

go 1.26.5

require sigs.k8s.io/karpenter v1.14.0
