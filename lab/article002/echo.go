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
	// The field of the response's head that says which server answered.
	replicaField = "replica"
)

// echo answers with what it was told, after a while. It counts as work that waits for something, as the article has
// it: it goes on when the client has gone.
type echo struct {
	replica string
	delay   time.Duration
}

func (e *echo) say(ctx context.Context, message *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	if err := grpc.SetHeader(ctx, metadata.Pairs(replicaField, e.replica)); err != nil {
		return nil, err
	}
	time.Sleep(e.delay)
	return message, nil
}

// echoService is what protoc would write for
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
	return server.(*echo).say(ctx, message)
}
