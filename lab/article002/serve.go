package main

import (
	"flag"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// serve answers at an address until it is killed.
func serve(words []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	delay := flags.Duration("delay", 100*time.Millisecond, "how long each call takes")
	age := flags.Duration("age", 0, "MaxConnectionAge: connections end when they are so old; 0 is never")
	if err := flags.Parse(words[1:]); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", words[0])
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: *age}))
	server.RegisterService(&echoService, &echo{replica: os.Getenv("REPLICA"), delay: *delay})
	return server.Serve(listener)
}
