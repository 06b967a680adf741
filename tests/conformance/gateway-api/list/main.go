// Command list prints the tests of the suite, one a line: profile, core or extended, name, state, and required features.
// A test belongs to a profile if all its features do.
package main

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/gateway-api/conformance/tests"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

var profiles = []suite.ConformanceProfile{
	suite.GatewayHTTPConformanceProfile,
	suite.GatewayGRPCConformanceProfile,
	suite.GatewayTLSConformanceProfile,
	suite.GatewayTCPConformanceProfile,
	suite.GatewayUDPConformanceProfile,
}

func main() {
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
			fmt.Println(profile.Name, level, test.ShortName, state, features(test))
		}
	}
}

func features(test suite.ConformanceTest) string {
	var names []string
	for _, feature := range test.Features {
		names = append(names, string(feature))
	}
	return strings.Join(names, ",")
}
