package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver/dns"
	"google.golang.org/grpc/status"
	// Targets of xDS.
	_ "google.golang.org/grpc/xds"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Timeout of the connection that opens before the calls.
const connectTimeout = 10 * time.Second

// callClient sends calls to one target and records their results.
type callClient struct {
	target   string
	deadline time.Duration
	options  []grpc.DialOption
	// The shared connection; nil if each call has its own.
	connection *grpc.ClientConn
}

// callResult is the result of one call. The send time is the scheduled one.
type callResult struct {
	sent    time.Time
	took    time.Duration
	replica string
	err     error
}

// call sends calls and writes a line of CSV for each: send time, seconds, replica, gRPC status code.
func call(arguments []string) error {
	flags := flag.NewFlagSet("call", flag.ExitOnError)
	calls := flags.Int("calls", 0, "number of simultaneous calls")
	rate := flags.Float64("rate", 0, "calls per second")
	seconds := flags.Float64("seconds", 0, "duration of the load")
	deadline := flags.Duration("deadline", 300*time.Millisecond, "deadline of each call")
	each := flags.Bool("connection-per-call", false, "open a connection for each call instead of sharing one")
	policy := flags.String("policy", "pick_first", "load balancing policy of gRPC")
	authority := flags.String("authority", "", "authority, if not the target's")
	interval := flags.Duration("resolution-interval", 30*time.Second, "minimum interval of DNS queries")
	if err := flags.Parse(arguments[1:]); err != nil {
		return err
	}
	dns.SetMinResolutionInterval(*interval)
	c := &callClient{target: arguments[0], deadline: *deadline, options: []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(fmt.Sprintf(`{"loadBalancingConfig": [{%q: {}}]}`, *policy)),
	}}
	if *authority != "" {
		c.options = append(c.options, grpc.WithAuthority(*authority))
	}
	if !*each {
		if err := c.connect(); err != nil {
			return err
		}
		defer c.connection.Close()
	}
	// The caller of this program counts from this line.
	fmt.Println("ready")
	if *calls > 0 {
		return write(c.burst(*calls))
	}
	return write(c.openLoop(*rate, *seconds))
}

// connect opens the shared connection and sends a call on it, so that the whole path is set up.
func (c *callClient) connect() (err error) {
	if c.connection, err = grpc.NewClient(c.target, c.options...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	_, err = say(ctx, c.connection, grpc.WaitForReady(true))
	return err
}

// burst sends simultaneous calls. The deadline of each counts from its start, as in the article.
func (c *callClient) burst(count int) []callResult {
	results := make([]callResult, count)
	var running sync.WaitGroup
	for number := range results {
		running.Go(func() { results[number] = c.send(time.Now()) })
	}
	running.Wait()
	return results
}

// openLoop sends calls at fixed times, independent of earlier answers. The deadline of each counts from its scheduled
// time. SIGTERM ends the load early.
func (c *callClient) openLoop(rate, seconds float64) []callResult {
	results := make([]callResult, int(rate*seconds))
	began := time.Now()
	var running sync.WaitGroup
	stopped, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for number := range results {
		if stopped.Err() != nil {
			results = results[:number]
			break
		}
		due := began.Add(time.Duration(float64(number) / rate * float64(time.Second)))
		time.Sleep(time.Until(due))
		running.Go(func() { results[number] = c.send(due) })
	}
	running.Wait()
	return results
}

func (c *callClient) send(due time.Time) callResult {
	ctx, cancel := context.WithDeadline(context.Background(), due.Add(c.deadline))
	defer cancel()
	replica, err := c.say(ctx)
	return callResult{sent: due, took: time.Since(due), replica: replica, err: err}
}

func (c *callClient) say(ctx context.Context) (string, error) {
	if c.connection != nil {
		return say(ctx, c.connection)
	}
	connection, err := grpc.NewClient(c.target, c.options...)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	return say(ctx, connection)
}

// say sends a call and returns the replica that answered.
func say(ctx context.Context, connection *grpc.ClientConn, options ...grpc.CallOption) (string, error) {
	var head metadata.MD
	answer := new(wrapperspb.StringValue)
	options = append(options, grpc.Header(&head))
	if err := connection.Invoke(ctx, sayMethod, wrapperspb.String("hello"), answer, options...); err != nil {
		return "", err
	}
	return strings.Join(head.Get(replicaField), " "), nil
}

func write(results []callResult) error {
	out := bufio.NewWriter(os.Stdout)
	reported := map[codes.Code]bool{codes.OK: true}
	for _, r := range results {
		sent, code := float64(r.sent.UnixMicro())/1e6, status.Code(r.err)
		fmt.Fprintf(out, "%.6f,%.6f,%s,%s\n", sent, r.took.Seconds(), r.replica, code)
		if !reported[code] {
			// Log the first failure of each code.
			fmt.Fprintln(os.Stderr, r.err)
			reported[code] = true
		}
	}
	return out.Flush()
}
