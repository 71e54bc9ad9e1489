"""Pipe-BD: pipelined parallel blockwise distillation (Jang et al., DATE 2023).

The paper's symbols and kdlab's words:

    T_i, S_i       block i of the teacher, of the student; here from 0
    D_i, G         device i, number of devices
    TR             teacher relaying: each device passes its teacher's output on
    DPU            decoupled parameter update: `Plan.decoupled`
    AHD            automatic hybrid distribution: the plan hybrid_plan.py finds
    IR             internal relaying: one stage of all blocks on all devices
    DP, LS         the baselines: block after block; one task per block (layerwise.py)
"""
