"""Sources of soft labels behind one protocol, SoftLabelSource.

none        N-training: there is no teacher
in_process  the papers' Online: the teacher runs in the student's process
cached      the papers' Offline: the teacher ran before, its labels are on disk
scripted    labels computed from the true ones, for tests and controls
served      EDL-Dist: teachers run elsewhere (kdlab/cluster/served.py)
"""
