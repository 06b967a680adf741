package main

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	sayMethod = "/lab.Echo/Say"
	// Response header with the name of the server.
	replicaField = "replica"
)

// echoServer returns the message after a delay. Like the work in the article, a call continues after the client has
// disconnected.
type echoServer struct {
	replica string
	delay   time.Duration
}

func (e *echoServer) say(ctx context.Context, message *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	if err := grpc.SetHeader(ctx, metadata.Pairs(replicaField, e.replica)); err != nil {
		return nil, err
	}
	time.Sleep(e.delay)
	return message, nil
}

// echoService is the description that protoc generates for
//
//	service Echo { rpc Say(google.protobuf.StringValue) returns (google.protobuf.StringValue); }
var echoService = grpc.ServiceDesc{
	ServiceName: "lab.Echo",
	HandlerType: (*any)(nil),
	Methods:     []grpc.MethodDesc{{MethodName: "Say", Handler: handleSay}},
}

func handleSay(
	server any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor,
) (any, error) {
	message := new(wrapperspb.StringValue)
	if err := decode(message); err != nil {
		return nil, err
	}
	return server.(*echoServer).say(ctx, message)
}
