// Command authorizer is an authorizer of Envoy's protocol (ext_authz), with grpc-go and the generated code of that
// protocol.
//
// It serves at a free port of 127.0.0.1, which it prints; with TLS if the arguments are the files of a certificate and its
// key. Then it prints each question as a line of JSON. The path of the request says how it answers.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func main() {
	if err := serve(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "authorizer:", err)
		os.Exit(1)
	}
}

func serve(files []string) error {
	var options []grpc.ServerOption
	if len(files) == 2 {
		certificate, err := credentials.NewServerTLSFromFile(files[0], files[1])
		if err != nil {
			return err
		}
		options = append(options, grpc.Creds(certificate))
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := grpc.NewServer(options...)
	authv3.RegisterAuthorizationServer(server, authorizer{})
	fmt.Println(listener.Addr())
	return server.Serve(listener)
}

type authorizer struct{}

// Check implements authv3.AuthorizationServer.
func (authorizer) Check(ctx context.Context, question *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	line, err := protojson.Marshal(question)
	if err != nil {
		return nil, err
	}
	fmt.Println(string(line))
	request := question.GetAttributes().GetRequest().GetHttp()
	path, _, _ := strings.Cut(request.GetPath(), "?")
	switch path {
	case "/denied":
		return denied(typev3.StatusCode_Unauthorized, "sign in", set("WWW-Authenticate", "Bearer"),
			add("Set-Cookie", "a=1"), add("Set-Cookie", "b=2"), set("Content-Length", "9999")), nil
	case "/moved":
		return denied(typev3.StatusCode_Found, "", set("Location", "/elsewhere")), nil
	case "/forbidden":
		return &authv3.CheckResponse{Status: &rpcstatus.Status{Code: int32(codes.PermissionDenied)}}, nil
	case "/refused-call":
		return nil, status.Error(codes.Unauthenticated, "no")
	case "/broken-call":
		return nil, status.Error(codes.Internal, "oops")
	case "/slow":
		<-ctx.Done()
		return nil, ctx.Err()
	case "/nothing":
		return &authv3.CheckResponse{}, nil
	case "/large":
		return denied(typev3.StatusCode_Forbidden, strings.Repeat("x", 100_000)), nil
	case "/long-field":
		return denied(typev3.StatusCode_Forbidden, "", set("X-Long", strings.Repeat("x", 100_000))), nil
	case "/injected":
		return allowed(&authv3.OkHttpResponse{Headers: fields(set("X-User", "a\r\nX-Admin: 1"))}), nil
	case "/error":
		return &authv3.CheckResponse{Status: &rpcstatus.Status{}, HttpResponse: &authv3.CheckResponse_ErrorResponse{
			ErrorResponse: &authv3.DeniedHttpResponse{}}}, nil
	default:
		return allowed(&authv3.OkHttpResponse{
			Headers: fields(set("X-User", "alice"), add("X-Groups", "staff"), set(":path", "/other"),
				set("Host", "other")),
			HeadersToRemove:         []string{"X-Token", "Content-Length", ":method"},
			ResponseHeadersToAdd:    fields(add("Set-Cookie", "session=1"), set("X-Served-For", "alice")),
			QueryParametersToSet:    []*corev3.QueryParameter{{Key: "user", Value: "a b"}},
			QueryParametersToRemove: []string{"debug"},
		}), nil
	}
}

func allowed(response *authv3.OkHttpResponse) *authv3.CheckResponse {
	return &authv3.CheckResponse{
		Status:       &rpcstatus.Status{Code: int32(codes.OK)},
		HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: response},
	}
}

func denied(code typev3.StatusCode, body string, options ...*corev3.HeaderValueOption) *authv3.CheckResponse {
	response := &authv3.DeniedHttpResponse{Status: &typev3.HttpStatus{Code: code}, Headers: options, Body: body}
	return &authv3.CheckResponse{
		Status:       &rpcstatus.Status{Code: int32(codes.Unauthenticated)},
		HttpResponse: &authv3.CheckResponse_DeniedResponse{DeniedResponse: response},
	}
}

func fields(options ...*corev3.HeaderValueOption) []*corev3.HeaderValueOption { return options }

// set replaces the field.
func set(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header: &corev3.HeaderValue{Key: name, Value: value},
		Append: wrapperspb.Bool(false),
	}
}

// add adds the value to those that are there.
func add(name, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header: &corev3.HeaderValue{Key: name, Value: value},
		Append: wrapperspb.Bool(true),
	}
}
