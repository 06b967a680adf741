// Command list prints the tests of the suite, one a line: profile, core or extended, name, state, and required features.
// A test belongs to a profile if all its features do. `list mesh-features` prints all features of meshes, with commas.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
	"sigs.k8s.io/gateway-api/pkg/features"
)

var profiles = []suite.ConformanceProfile{
	suite.GatewayHTTPConformanceProfile,
	suite.GatewayGRPCConformanceProfile,
	suite.GatewayTLSConformanceProfile,
	suite.GatewayTCPConformanceProfile,
	suite.GatewayUDPConformanceProfile,
	suite.MeshHTTPConformanceProfile,
	suite.MeshGRPCConformanceProfile,
}

func main() {
	if slices.Equal(os.Args[1:], []string{"mesh-features"}) {
		fmt.Println(strings.Join(meshFeatures(), ","))
		return
	}
	slices.SortFunc(tests.ConformanceTests, func(a, b suite.ConformanceTest) int {
		return strings.Compare(a.ShortName, b.ShortName)
	})
	for _, profile := range profiles {
		all := profile.CoreFeatures.Union(profile.ExtendedFeatures)
		for _, test := range tests.ConformanceTests {
			if !all.HasAll(test.Features...) {
				continue
			}
			level := "extended"
			if profile.CoreFeatures.HasAll(test.Features...) {
				level = "core"
			}
			state := "established"
			if test.Provisional {
				state = "provisional"
			}
			fmt.Println(profile.Name, level, test.ShortName, state, strings.Join(names(test.Features), ","))
		}
	}
}

// meshFeatures returns the extended features of the mesh profiles, and those of all mesh tests, which need further ones.
func meshFeatures() []string {
	found := suite.MeshHTTPConformanceProfile.ExtendedFeatures.Clone()
	for _, test := range tests.ConformanceTests {
		if slices.Contains(test.Features, features.SupportMesh) {
			found.Insert(test.Features...)
		}
	}
	return slices.Sorted(slices.Values(names(found.UnsortedList())))
}

func names(of []features.FeatureName) []string {
	var names []string
	for _, feature := range of {
		names = append(names, string(feature))
	}
	return names
}
