package host

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"orders/gen-go/foqsthrift"
)

var leaseMs, _ = strconv.ParseInt(env("LEASE_MS", "30000"), 10, 64)

// UntilSignal returns a context that SIGTERM or SIGINT ends, and one for reports: it ends 10 s later.
func UntilSignal() (running, reports context.Context) {
	running, _ = signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	reports, end := context.WithCancel(context.Background())
	go func() {
		<-running.Done()
		log.Print("stopping")
		time.AfterFunc(10*time.Second, end)
	}()
	return running, reports
}

// Dequeue leases items of a topic. It waits for at most 5 s for a first one.
func Dequeue(ctx context.Context, topic string, count int32) (items []*foqsthrift.Item, err error) {
	waitMs, worker := int64(5_000), fmt.Sprintf("%s-%d", topic, os.Getpid())
	request := &foqsthrift.DequeueRequest{Ns: Namespace, Wants: []*foqsthrift.TopicCount{{Topic: topic, Count: count}},
		LeaseMs: &leaseMs, WaitMs: &waitMs, Worker: &worker, Context: Context}
	err = Call(ctx, func(client *foqsthrift.FoqsClient) error {
		reply, err := client.Dequeue(ctx, request)
		if err == nil {
			items = reply.Items
		}
		return err
	})
	return items, err
}

type outcomes interface {
	GetOutcomes() []*foqsthrift.ItemOutcome
}

func report(ctx context.Context, send func(*foqsthrift.FoqsClient) (outcomes, error)) error {
	return Call(ctx, func(client *foqsthrift.FoqsClient) error {
		reply, err := send(client)
		if err == nil && reply.GetOutcomes()[0].Error != nil {
			err = Refused(reply.GetOutcomes()[0].Error)
		}
		return err
	})
}

// Ack reports that the work on an item is done.
func Ack(ctx context.Context, item *foqsthrift.Item) error {
	request := &foqsthrift.AckRequest{Items: []*foqsthrift.AckItem{{ID: item.ID, Lease: item.Lease}}, Context: Context}
	return report(ctx, func(client *foqsthrift.FoqsClient) (outcomes, error) { return client.Ack(ctx, request) })
}

// Nack reports what is not done. Without a reason the work has not begun, and the attempt does not count.
func Nack(ctx context.Context, item *foqsthrift.Item, delayMs int64, reason string) error {
	nack, yes := &foqsthrift.NackItem{ID: item.ID, Lease: item.Lease}, true
	if reason == "" {
		nack.Release = &yes
	} else {
		nack.Failed, nack.DelayMs, nack.Reason = &yes, &delayMs, &reason
	}
	request := &foqsthrift.NackRequest{Items: []*foqsthrift.NackItem{nack}, Context: Context}
	return report(ctx, func(client *foqsthrift.FoqsClient) (outcomes, error) { return client.Nack(ctx, request) })
}

// Extend extends a lease until ctx ends.
func Extend(ctx context.Context, item *foqsthrift.Item) {
	request := &foqsthrift.ExtendLeaseRequest{Items: []*foqsthrift.ExtendItem{{ID: item.ID, Lease: item.Lease}}, Context: Context}
	for {
		select {
		case <-time.After(time.Duration(leaseMs) * time.Millisecond / 3):
			report(ctx, func(client *foqsthrift.FoqsClient) (outcomes, error) { return client.ExtendLease(ctx, request) })
		case <-ctx.Done():
			return
		}
	}
}
