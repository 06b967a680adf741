package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// TTL of a headless Service in a cluster's DNS.
	ttlSeconds      = 5
	maxMessageBytes = 512
)

// resolve runs a DNS server with one name. It answers with all servers in random order, like CoreDNS for a headless
// Service, and prints a line for each query for their addresses.
func resolve(arguments []string) error {
	flags := flag.NewFlagSet("resolve", flag.ExitOnError)
	name := flags.String("name", "", "fully qualified name, with a final dot")
	file := flags.String("servers", "", "file with the servers' addresses, which is read for each query")
	if err := flags.Parse(arguments[1:]); err != nil {
		return err
	}
	socket, err := net.ListenPacket("udp", arguments[0])
	if err != nil {
		return err
	}
	fmt.Println("listening")
	query := make([]byte, maxMessageBytes)
	for {
		count, client, err := socket.ReadFrom(query)
		if err != nil {
			return err
		}
		answer, err := answerTo(query[:count], *name, *file)
		if err != nil {
			continue
		}
		if _, err := socket.WriteTo(answer, client); err != nil {
			return err
		}
	}
}

func answerTo(message []byte, name, file string) ([]byte, error) {
	var query dnsmessage.Message
	if err := query.Unpack(message); err != nil {
		return nil, err
	}
	reply := dnsmessage.Message{Header: query.Header, Questions: query.Questions}
	reply.Response, reply.Authoritative = true, true
	for _, question := range query.Questions {
		switch {
		case question.Name.String() != name:
			reply.RCode = dnsmessage.RCodeNameError
		case question.Type == dnsmessage.TypeA:
			fmt.Println(question.Name)
			addresses, err := servers(file)
			if err != nil {
				return nil, err
			}
			reply.Answers = append(reply.Answers, records(question.Name, addresses)...)
		}
	}
	return reply.Pack()
}

func servers(file string) ([]netip.Addr, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var found []netip.Addr
	for _, word := range strings.Fields(string(text)) {
		address, err := netip.ParseAddr(word)
		if err != nil {
			return nil, err
		}
		found = append(found, address)
	}
	return found, nil
}

func records(name dnsmessage.Name, addresses []netip.Addr) []dnsmessage.Resource {
	found := make([]dnsmessage.Resource, len(addresses))
	for position, number := range rand.Perm(len(addresses)) {
		found[position] = dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: ttlSeconds},
			Body:   &dnsmessage.AResource{A: addresses[number].As4()},
		}
	}
	return found
}
