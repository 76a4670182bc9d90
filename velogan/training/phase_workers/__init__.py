"""Training by one worker process per phase, with copies of the networks that other phases train.

After "Improving Cycle-GAN using Intel AI DevCloud" (2018): workers exchange weights at intervals. A worker
(`worker.py`) has a trainer whose step has only one phase. The step of the run's own trainer (`remote_step.py`) only
sends the workers requests to train. `run.py` starts the workers, as Ray actors.
"""
