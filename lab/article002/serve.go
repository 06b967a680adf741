package main

import (
	"flag"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// serve listens on an address until it is killed.
func serve(arguments []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	delay := flags.Duration("delay", 100*time.Millisecond, "service time of each call")
	age := flags.Duration("age", 0, "MaxConnectionAge of gRPC; 0 is unlimited")
	if err := flags.Parse(arguments[1:]); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", arguments[0])
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: *age}))
	server.RegisterService(&echoService, &echoServer{replica: os.Getenv("REPLICA"), delay: *delay})
	return server.Serve(listener)
}
