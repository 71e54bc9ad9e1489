"""The ways to train, one folder each: EDL-Dist's student, Pipe-BD's blocks, EC-DNN's ensembles.

Nothing outside a folder knows what is in it: a run meets `kdlab/experiment/method.py` only.
"""
