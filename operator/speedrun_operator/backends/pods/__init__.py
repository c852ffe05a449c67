"""The backend Pods: one pod an allocation, owned by the Speedrun."""
