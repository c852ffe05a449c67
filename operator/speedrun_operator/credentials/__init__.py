"""Credentials as people keep them: kubeconfigs, plugins, OIDC refresh tokens. Knows no other package."""
