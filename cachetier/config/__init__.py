"""Settings of the service: where they come from, what each means, which remotes they name."""
