"""Several balancers in front of the same endpoints: arms, load with counts at the pods, faults, figures."""
