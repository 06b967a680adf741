package main

import (
	"context"
	"fmt"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"
)

// keyUpdates reports updates of the keys, which quic-go makes by itself after the first hundred packets.
type keyUpdates struct{}

func traceKeyUpdates(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return keyUpdates{} }

func (keyUpdates) AddProducer() qlogwriter.Recorder { return keyUpdates{} }
func (keyUpdates) Close() error                     { return nil }

func (keyUpdates) RecordEvent(event qlogwriter.Event) {
	if updated, ok := event.(qlog.KeyUpdated); ok && updated.Trigger == qlog.KeyUpdateLocal {
		fmt.Println("fact key-update")
	}
}
