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
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// How long the connection may take that is there before the calls.
const connectPatience = 10 * time.Second

// caller sends calls to one target and keeps what became of each.
type caller struct {
	target   string
	deadline time.Duration
	options  []grpc.DialOption
	// The one connection; none if each call has its own.
	connection *grpc.ClientConn
}

// result is one call. The time is the one when it was to be sent.
type result struct {
	sent    time.Time
	took    time.Duration
	replica string
	err     error
}

// call makes calls and writes a line of CSV for each: when it was sent, seconds, who answered, gRPC's code.
func call(words []string) error {
	flags := flag.NewFlagSet("call", flag.ExitOnError)
	calls := flags.Int("calls", 0, "so many calls, all at once")
	rate := flags.Float64("rate", 0, "so many calls per second")
	seconds := flags.Float64("seconds", 0, "for so long")
	deadline := flags.Duration("deadline", 300*time.Millisecond, "of each call")
	each := flags.Bool("connection-per-call", false, "a connection for each call, rather than one for all")
	policy := flags.String("policy", "pick_first", "how gRPC chooses among the addresses that it knows")
	authority := flags.String("authority", "", "the name that is asked for, if not the target's")
	interval := flags.Duration("resolution-interval", 30*time.Second, "DNS is asked no oftener")
	if err := flags.Parse(words[1:]); err != nil {
		return err
	}
	dns.SetMinResolutionInterval(*interval)
	c := &caller{target: words[0], deadline: *deadline, options: []grpc.DialOption{
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
	// Whoever plays the scenario counts from here.
	fmt.Println("ready")
	if *calls > 0 {
		return write(c.atOnce(*calls))
	}
	return write(c.atRate(*rate, *seconds))
}

// connect opens the one connection and makes a call on it, so that everything on the way is there.
func (c *caller) connect() (err error) {
	if c.connection, err = grpc.NewClient(c.target, c.options...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), connectPatience)
	defer cancel()
	_, err = say(ctx, c.connection, grpc.WaitForReady(true))
	return err
}

// atOnce makes calls that are all under way together. Each has its deadline from when it begins, as in the article.
func (c *caller) atOnce(count int) []result {
	results := make([]result, count)
	var running sync.WaitGroup
	for number := range results {
		running.Go(func() { results[number] = c.one(time.Now()) })
	}
	running.Wait()
	return results
}

// atRate makes calls at moments that do not depend on those before, each with its deadline from its moment on. SIGTERM
// ends it early.
func (c *caller) atRate(rate, seconds float64) []result {
	results := make([]result, int(rate*seconds))
	began := time.Now()
	var running sync.WaitGroup
	over, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	for number := range results {
		if over.Err() != nil {
			results = results[:number]
			break
		}
		due := began.Add(time.Duration(float64(number) / rate * float64(time.Second)))
		time.Sleep(time.Until(due))
		running.Go(func() { results[number] = c.one(due) })
	}
	running.Wait()
	return results
}

func (c *caller) one(due time.Time) result {
	ctx, cancel := context.WithDeadline(context.Background(), due.Add(c.deadline))
	defer cancel()
	replica, err := c.say(ctx)
	return result{sent: due, took: time.Since(due), replica: replica, err: err}
}

func (c *caller) say(ctx context.Context) (string, error) {
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

// say makes the call and returns who answered.
func say(ctx context.Context, connection *grpc.ClientConn, options ...grpc.CallOption) (string, error) {
	var head metadata.MD
	answer := new(wrapperspb.StringValue)
	options = append(options, grpc.Header(&head))
	if err := connection.Invoke(ctx, sayMethod, wrapperspb.String("hello"), answer, options...); err != nil {
		return "", err
	}
	return strings.Join(head.Get(replicaField), " "), nil
}

func write(results []result) error {
	out := bufio.NewWriter(os.Stdout)
	told := map[codes.Code]bool{codes.OK: true}
	for _, r := range results {
		sent, code := float64(r.sent.UnixMicro())/1e6, status.Code(r.err)
		fmt.Fprintf(out, "%.6f,%.6f,%s,%s\n", sent, r.took.Seconds(), r.replica, code)
		if !told[code] {
			// For the log: what there is to know of the first failure of each kind.
			fmt.Fprintln(os.Stderr, r.err)
			told[code] = true
		}
	}
	return out.Flush()
}
