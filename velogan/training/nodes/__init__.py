"""Model-parallel training: each node trains the networks of one module (a phase), with copies of the other networks.

After "Improving Cycle-GAN using Intel AI DevCloud" (2018): modules exchange weights at intervals. A node (`node.py`) is
a trainer whose step has only its module's phase. The run's own trainer has a step (`remote_step.py`) that only sends
the nodes requests to train. `run.py` starts the nodes, as Ray actors.
"""
