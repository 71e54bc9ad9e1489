"""Whoever starts machines for teachers: this one, SSH, a batch system, Kubernetes."""
