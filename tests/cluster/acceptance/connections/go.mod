// New connections at a steady rate, each with its source port and its result, and the server for them.
module sheave.dev/tests/cluster/acceptance/connections

go 1.26.0
