"""Cases, scenarios, sweeps and the store of their results."""
