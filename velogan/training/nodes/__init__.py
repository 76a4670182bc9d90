"""One training by several nodes: each trains the networks of one module, with copies of the others'.

After "Improving Cycle-GAN using Intel AI DevCloud" (2018): the modules exchange weights now and then, and in between
each computes with the others' as they were. A node (`node.py`) is a trainer whose step has the other phases left out.
The process that keeps the run folder runs the whole trainer, but its step (`placed.py`) computes nothing: as on a GPU
it is only noted, and the nodes are asked to catch up when networks are exchanged, when seconds have passed, or when
somebody looks. `run.py` starts such a training, `ray.py` starts the nodes.
"""
