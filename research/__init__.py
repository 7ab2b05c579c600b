"""What is behind the statements and pages of this repository: experiments, the validation of
projections, and the generators of docs/results. Nothing in workflow_lib imports it."""
