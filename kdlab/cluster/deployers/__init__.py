"""Deployers of machines for teachers: local, SSH, a batch system, Kubernetes."""
