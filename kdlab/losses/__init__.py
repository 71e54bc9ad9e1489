"""Soft losses ψ of EDL-Dist's Algorithm 2, line 5. The step adds α φ(hard labels)."""
