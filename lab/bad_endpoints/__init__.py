"""The experiment bad-endpoints: one measurement of a scenario with an arm, its rows, and what they come to."""
