"""Training methods, one folder each: EDL-Dist's student, Pipe-BD's blocks, EC-DNN's ensembles.

Runs use them through the interface of `kdlab/experiment/method.py` alone.
"""
