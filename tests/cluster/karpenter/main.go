// Command karpenter is Karpenter, whose machines are nodes of the test cluster.
//
//	MACHINES=SOCKET CAPACITY=JSON karpenter
//
// SOCKET is that of machines.py, which starts and removes machines; CAPACITY is what each machine has. Karpenter's own
// settings are environment variables too.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
)

func main() {
	var capacity corev1.ResourceList
	if err := json.Unmarshal([]byte(os.Getenv("CAPACITY")), &capacity); err != nil {
		fmt.Fprintln(os.Stderr, "karpenter: CAPACITY is not a list of resources:", err)
		os.Exit(2)
	}
	ctx, op := operator.NewOperator()
	machines := newProvider(os.Getenv("MACHINES"), capacity)
	provider := overlay.Decorate(machines, op.GetClient(), op.InstanceTypeStore)
	known := state.NewCluster(op.Clock, op.GetClient(), provider)
	op.WithControllers(ctx, controllers.NewControllers(
		ctx, op.Manager, op.Clock, op.GetClient(), op.EventRecorder, provider, machines, known, op.InstanceTypeStore,
	)...).Start(ctx)
}
