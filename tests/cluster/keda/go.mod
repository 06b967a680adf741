// KEDA, whose programs are built in the folder of its module: by its own go.mod, go.sum and replacements.
module sheave.dev/tests/cluster/keda

go 1.26.0

require github.com/kedacore/keda/v2 v2.21.0 // indirect
