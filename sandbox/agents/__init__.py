"""Programs of other people that know an HTTP endpoint, as processes of a worker."""
