// Command proxyless is a gRPC client and a gRPC server for tests of Sheave's xDS server.
//
//	proxyless serve NAME                 serves at a free port of 127.0.0.1, which it prints
//	proxyless serve-xds NAME             the same, with the listener that Sheave has for it, from when it has that
//	proxyless call TARGET                calls until the standard input ends
//	proxyless psm ADDRESS                asks gRPC's own client of xDS what has become of its calls
//
// Server and client are grpc-go as it is: the client dials TARGET (xds:///...), by the bootstrap file that GRPC_XDS_BOOTSTRAP names.
// For each line of its standard input, `METHOD COUNT KEY=VALUE...`, it makes COUNT calls of the method, with that
// metadata, and prints `NAME=CALLS` for each server that has answered, `failed=CALLS`, and `status-CODE=CALLS` for each
// status of those that have failed. `wait NAME` calls until that server has answered, and prints the microseconds that it
// took. `stream METHOD` keeps calling in the background, without an answer, until `stop`, which prints the sums.
//
// With XDS_CREDENTIALS=1 connections to servers have the TLS that Sheave says, else they are plaintext.
//
// The clients in the other languages of this folder do the same. This one knows `hold METHOD COUNT KEY=VALUE...` too: it
// begins COUNT calls, without an answer, which last until their server ends them, or the client ends.
package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	xdscreds "google.golang.org/grpc/credentials/xds"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// patience is longer than any call takes on a busy machine.
const patience = time.Minute

func main() {
	var err error
	switch {
	case len(os.Args) == 3 && os.Args[1] == "serve":
		err = serve(os.Args[2], func(option grpc.ServerOption) (*grpc.Server, error) {
			return grpc.NewServer(option), nil
		})
	case len(os.Args) == 3 && os.Args[1] == "serve-xds":
		err = serveXDS(os.Args[2])
	case len(os.Args) == 3 && os.Args[1] == "call":
		err = call(os.Args[2])
	case len(os.Args) == 3 && os.Args[1] == "psm":
		err = psm(os.Args[2])
	default:
		err = fmt.Errorf("usage: proxyless serve NAME | serve-xds NAME | call TARGET | psm ADDRESS")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "proxyless:", err)
		os.Exit(1)
	}
}

// serve answers every method with its name, /shop.Flaky/... with UNAVAILABLE in every second call, and /shop.Slow/... not
// at all. Its health check fails from SIGUSR1 to SIGUSR2. SIGTERM stops it gracefully, as a Pod does.
func serve[S server](name string, newServer func(grpc.ServerOption) (S, error)) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var calls sync.Map
	answer := func(_ any, stream grpc.ServerStream) error {
		if err := stream.RecvMsg(new(emptypb.Empty)); err != nil {
			return err
		}
		method, _ := grpc.MethodFromServerStream(stream)
		if strings.HasPrefix(method, "/shop.Flaky/") {
			if _, again := calls.LoadOrStore(method, true); !again {
				return status.Error(codes.Unavailable, "not now")
			}
			calls.Delete(method)
		}
		if strings.HasPrefix(method, "/shop.Slow/") {
			<-stream.Context().Done()
			return stream.Context().Err()
		}
		return stream.SendMsg(wrapperspb.String(name))
	}
	server, err := newServer(grpc.UnknownServiceHandler(answer))
	if err != nil {
		return err
	}
	check := health.NewServer()
	healthpb.RegisterHealthServer(server, check)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for {
			switch <-signals {
			case syscall.SIGUSR1:
				check.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
			case syscall.SIGUSR2:
				check.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
			default:
				server.GracefulStop()
				return
			}
		}
	}()
	fmt.Println(listener.Addr())
	return server.Serve(listener)
}

// server is a server of gRPC, with or without xDS.
type server interface {
	grpc.ServiceRegistrar
	Serve(net.Listener) error
	GracefulStop()
}

// serveXDS serves with the TLS and for the clients that Sheave says.
func serveXDS(name string) error {
	credentials, err := xdscreds.NewServerCredentials(xdscreds.ServerOptions{FallbackCreds: insecure.NewCredentials()})
	if err != nil {
		return err
	}
	report := xds.ServingModeCallback(func(address net.Addr, change xds.ServingModeChangeArgs) {
		fmt.Fprintln(os.Stderr, name, address, change.Mode, change.Err)
	})
	return serve(name, func(option grpc.ServerOption) (*xds.GRPCServer, error) {
		return xds.NewGRPCServer(option, grpc.Creds(credentials), report)
	})
}

// channelCredentials returns the credentials of connections to servers.
func channelCredentials() (credentials.TransportCredentials, error) {
	plaintext := insecure.NewCredentials()
	if os.Getenv("XDS_CREDENTIALS") == "" {
		return plaintext, nil
	}
	return xdscreds.NewClientCredentials(xdscreds.ClientOptions{FallbackCreds: plaintext})
}

// tally counts calls by the server that has answered, and those that have failed by their status too.
type tally struct {
	lock   sync.Mutex
	counts map[string]int
}

func (t *tally) add(name string) {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.counts[name]++
}

func (t *tally) print() {
	t.lock.Lock()
	defer t.lock.Unlock()
	var words []string
	for name, count := range t.counts {
		words = append(words, fmt.Sprintf("%s=%d", name, count))
	}
	sort.Strings(words)
	fmt.Println(strings.Join(words, " "))
}

func call(target string) error {
	credentials, err := channelCredentials()
	if err != nil {
		return err
	}
	connection, err := grpc.NewClient(target, grpc.WithTransportCredentials(credentials))
	if err != nil {
		return err
	}
	defer connection.Close()
	var background sync.WaitGroup
	var streamed *tally
	stop := func() {}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		switch words[0] {
		case "wait":
			begun := time.Now()
			for {
				name, err := invoke(connection, "/shop.Cart/Get", nil)
				if err == nil && name == words[1] {
					break
				}
				if time.Since(begun) > patience {
					return fmt.Errorf("%s has not answered: %v", words[1], err)
				}
			}
			fmt.Println(time.Since(begun).Microseconds())
		case "stream":
			streamed = &tally{counts: map[string]int{"failed": 0}}
			var running context.Context
			running, stop = context.WithCancel(context.Background())
			for range 4 {
				background.Go(func() { stream(running, connection, words[1], streamed) })
			}
		case "hold":
			count, err := strconv.Atoi(words[2])
			if err != nil {
				return err
			}
			for range count {
				go hold(connection, words[1], words[3:])
			}
		case "stop":
			stop()
			background.Wait()
			streamed.print()
		default:
			count, err := strconv.Atoi(words[1])
			if err != nil {
				return err
			}
			counted := &tally{counts: map[string]int{"failed": 0}}
			for range count {
				record(connection, words[0], words[2:], counted)
			}
			counted.print()
		}
	}
	return lines.Err()
}

func stream(running context.Context, connection *grpc.ClientConn, method string, counted *tally) {
	for running.Err() == nil {
		record(connection, method, nil, counted)
	}
}

func hold(connection *grpc.ClientConn, method string, fields []string) {
	ctx := withFields(context.Background(), fields)
	err := connection.Invoke(ctx, method, new(emptypb.Empty), new(wrapperspb.StringValue))
	fmt.Fprintln(os.Stderr, method, err)
}

func record(connection *grpc.ClientConn, method string, fields []string, counted *tally) {
	name, err := invoke(connection, method, fields)
	if err != nil {
		fmt.Fprintln(os.Stderr, method, err)
		counted.add("failed")
		name = fmt.Sprintf("status-%d", status.Code(err))
	}
	counted.add(name)
}

func invoke(connection *grpc.ClientConn, method string, fields []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ctx = withFields(ctx, fields)
	answer := new(wrapperspb.StringValue)
	err := connection.Invoke(ctx, method, new(emptypb.Empty), answer, grpc.WaitForReady(false))
	return answer.Value, err
}

func withFields(ctx context.Context, fields []string) context.Context {
	for _, field := range fields {
		key, value, _ := strings.Cut(field, "=")
		ctx = metadata.AppendToOutgoingContext(ctx, key, value)
	}
	return ctx
}
