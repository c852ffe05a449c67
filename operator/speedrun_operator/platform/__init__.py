"""The Andromeda Platform API: who we are there, what it says of a cluster, and the cluster's kubeconfig. Only reads."""
