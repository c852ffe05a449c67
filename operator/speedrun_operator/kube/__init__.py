"""The Kubernetes API as the engine uses it: reads, the conditional write of status, events."""
