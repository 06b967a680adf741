// Command article002 reproduces »Load balancing gRPC in K8s without service mesh«: an echo server, a client with a
// deadline, and a DNS server for several servers, in place of a cluster's.
//
//	article002 serve ADDRESS [-age DURATION]
//	article002 call TARGET -calls N | -rate N -seconds S
//	article002 resolve ADDRESS -name NAME -servers FILE
package main

import (
	"fmt"
	"os"
)

func main() {
	commands := map[string]func([]string) error{"serve": serve, "call": call, "resolve": resolve}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: article002 serve|call|resolve ...")
		os.Exit(1)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "article002 %s: %v\n", os.Args[1], err)
		os.Exit(2)
	}
}
