package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
)

// psm asks gRPC's own interop client for xDS, which serves at an address, what has become of its calls:
//
//	stats COUNT                            of the next COUNT calls: METHOD/SERVER=CALLS of each server, and failed=CALLS
//	accumulated                            of all calls: METHOD/started=CALLS and METHOD/CODE=CALLS of each status
//	configure SECONDS TYPE[:KEY=VALUE]...  makes calls of these types, with this metadata and this deadline
func psm(address string) error {
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		answer, err := ask(connection, strings.Fields(lines.Text()))
		if err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
		sort.Strings(answer)
		fmt.Println(strings.Join(answer, " "))
	}
	return lines.Err()
}

func ask(connection *grpc.ClientConn, words []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	stats := testpb.NewLoadBalancerStatsServiceClient(connection)
	var answer []string
	switch words[0] {
	case "stats":
		count, err := strconv.ParseInt(words[1], 10, 32)
		if err != nil {
			return nil, err
		}
		request := &testpb.LoadBalancerStatsRequest{NumRpcs: int32(count), TimeoutSec: int32(patience.Seconds())}
		// The client may start later than this program.
		response, err := stats.GetClientStats(ctx, request, grpc.WaitForReady(true))
		if err != nil {
			return nil, err
		}
		answer = append(answer, fmt.Sprintf("failed=%d", response.NumFailures))
		for method, peers := range response.RpcsByMethod {
			for peer, calls := range peers.RpcsByPeer {
				answer = append(answer, fmt.Sprintf("%s/%s=%d", method, peer, calls))
			}
		}
	case "accumulated":
		response, err := stats.GetClientAccumulatedStats(ctx, new(testpb.LoadBalancerAccumulatedStatsRequest))
		if err != nil {
			return nil, err
		}
		for method, counts := range response.StatsPerMethod {
			answer = append(answer, fmt.Sprintf("%s/started=%d", method, counts.RpcsStarted))
			for code, calls := range counts.Result {
				answer = append(answer, fmt.Sprintf("%s/%d=%d", method, code, calls))
			}
		}
	case "configure":
		request, err := configuration(words[1], words[2:])
		if err != nil {
			return nil, err
		}
		client := testpb.NewXdsUpdateClientConfigureServiceClient(connection)
		if _, err := client.Configure(ctx, request, grpc.WaitForReady(true)); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("no command")
	}
	return answer, nil
}

func configuration(seconds string, types []string) (*testpb.ClientConfigureRequest, error) {
	timeout, err := strconv.ParseInt(seconds, 10, 32)
	if err != nil {
		return nil, err
	}
	request := &testpb.ClientConfigureRequest{TimeoutSec: int32(timeout)}
	for _, word := range types {
		name, field, hasField := strings.Cut(word, ":")
		kind, known := testpb.ClientConfigureRequest_RpcType_value[name]
		if !known {
			return nil, fmt.Errorf("no type of calls: %s", name)
		}
		request.Types = append(request.Types, testpb.ClientConfigureRequest_RpcType(kind))
		if hasField {
			key, value, _ := strings.Cut(field, "=")
			request.Metadata = append(request.Metadata, &testpb.ClientConfigureRequest_Metadata{
				Type: testpb.ClientConfigureRequest_RpcType(kind), Key: key, Value: value,
			})
		}
	}
	return request, nil
}
