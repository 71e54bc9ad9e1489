"""One worker of EC-DNN and its baselines: a local model on local data.

worker      its rounds: local training, what the others sent, compression, reset point
stream      its batches, in an order that depends on nothing but how many were taken
exchange    models as files with a hash
relabel     the mean of several models' outputs, one model after another
"""
