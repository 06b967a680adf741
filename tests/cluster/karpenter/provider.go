package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/awslabs/operatorpkg/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/karpenter/kwok/apis/v1alpha1"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

const (
	instanceType = "machine"
	zone         = "machines"
	timeout      = 10 * time.Second
	// An answer of machines.py lists a few machines.
	longestAnswer = 1 << 20
)

// machine is what machines.py says of one.
type machine struct {
	ID     string            `json:"id"`
	Labels map[string]string `json:"labels"`
}

// provider starts and removes machines by HTTP over a Unix socket.
type provider struct {
	client   http.Client
	capacity corev1.ResourceList
}

func newProvider(socket string, capacity corev1.ResourceList) *provider {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: timeout}
	return &provider{client, capacity}
}

// Create asks for a machine; it registers as a node once it has booted.
func (p *provider) Create(ctx context.Context, claim *v1.NodeClaim) (*v1.NodeClaim, error) {
	labels := maps.Clone(claim.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	for _, wanted := range claim.Spec.Requirements {
		if wanted.Operator == corev1.NodeSelectorOpIn && len(wanted.Values) == 1 {
			labels[wanted.Key] = wanted.Values[0]
		}
	}
	labels[corev1.LabelInstanceTypeStable] = instanceType
	labels[corev1.LabelTopologyZone] = zone
	labels[v1.CapacityTypeLabelKey] = v1.CapacityTypeOnDemand
	var made machine
	code, err := p.call(ctx, http.MethodPost, "/machines", machine{Labels: labels}, &made)
	switch {
	case err != nil:
		return nil, err
	case code == http.StatusServiceUnavailable:
		return nil, cloudprovider.NewInsufficientCapacityError(errors.New("all machines are in use"))
	}
	return p.claim(made), nil
}

// Delete removes a machine; it is gone when this returns.
func (p *provider) Delete(ctx context.Context, claim *v1.NodeClaim) error {
	code, err := p.call(ctx, http.MethodDelete, path(claim.Status.ProviderID), nil, nil)
	if err == nil && code == http.StatusNotFound {
		return notFound(claim.Status.ProviderID)
	}
	return err
}

func (p *provider) Get(ctx context.Context, id string) (*v1.NodeClaim, error) {
	var found machine
	code, err := p.call(ctx, http.MethodGet, path(id), nil, &found)
	switch {
	case err != nil:
		return nil, err
	case code == http.StatusNotFound:
		return nil, notFound(id)
	}
	return p.claim(found), nil
}

func (p *provider) List(ctx context.Context) ([]*v1.NodeClaim, error) {
	var found []machine
	if _, err := p.call(ctx, http.MethodGet, "/machines", nil, &found); err != nil {
		return nil, err
	}
	claims := make([]*v1.NodeClaim, 0, len(found))
	for _, it := range found {
		claims = append(claims, p.claim(it))
	}
	return claims, nil
}

// GetInstanceTypes returns the one type that all machines have.
func (p *provider) GetInstanceTypes(context.Context, *v1.NodePool) ([]*cloudprovider.InstanceType, error) {
	in := func(key string, value string) *scheduling.Requirement {
		return scheduling.NewRequirement(key, corev1.NodeSelectorOpIn, value)
	}
	place := []*scheduling.Requirement{
		in(corev1.LabelTopologyZone, zone), in(v1.CapacityTypeLabelKey, v1.CapacityTypeOnDemand),
	}
	requirements := scheduling.NewRequirements(append(place,
		in(corev1.LabelInstanceTypeStable, instanceType),
		in(corev1.LabelArchStable, v1.ArchitectureAmd64),
		in(corev1.LabelOSStable, string(corev1.Linux)),
	)...)
	offering := &cloudprovider.Offering{Requirements: scheduling.NewRequirements(place...), Price: 1, Available: true}
	return []*cloudprovider.InstanceType{{
		Name:         instanceType,
		Requirements: requirements,
		Offerings:    cloudprovider.Offerings{offering},
		Capacity:     p.capacity,
		Overhead:     &cloudprovider.InstanceTypeOverhead{},
	}}, nil
}

func (p *provider) IsDrifted(context.Context, *v1.NodeClaim) (cloudprovider.DriftReason, error) {
	return "", nil
}

func (p *provider) RepairPolicies() []cloudprovider.RepairPolicy { return nil }

func (p *provider) Name() string { return "sheave-cluster" }

// GetSupportedNodeClasses returns the class of Karpenter's own example provider: machines here have no settings.
func (p *provider) GetSupportedNodeClasses() []status.Object {
	return []status.Object{&v1alpha1.KWOKNodeClass{}}
}

func (p *provider) claim(it machine) *v1.NodeClaim {
	return &v1.NodeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: it.ID, Labels: it.Labels},
		Status:     v1.NodeClaimStatus{ProviderID: it.ID, Capacity: p.capacity, Allocatable: p.capacity},
	}
}

// call sends a request, and reads a successful answer. It returns an error for a status that no caller expects.
func (p *provider) call(ctx context.Context, method, path string, body, answer any) (int, error) {
	var text bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&text).Encode(body); err != nil {
			return 0, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://machines"+path, &text)
	if err != nil {
		return 0, err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusNotFound, http.StatusServiceUnavailable:
		return response.StatusCode, nil
	case http.StatusOK:
	default:
		return 0, fmt.Errorf("%s %s: %s", method, path, response.Status)
	}
	if answer == nil {
		return response.StatusCode, nil
	}
	return response.StatusCode, json.NewDecoder(io.LimitReader(response.Body, longestAnswer)).Decode(answer)
}

// path returns the path of a machine. Its ID is "sheave://NAME", the provider ID of its node.
func path(id string) string {
	_, name, _ := strings.Cut(id, "://")
	return "/machines/" + name
}

func notFound(id string) error {
	return cloudprovider.NewNodeClaimNotFoundError(fmt.Errorf("there is no machine %q", id))
}
