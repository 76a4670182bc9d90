"""Many runs at once: plans, the runs as child processes, Ray Tune as their scheduler, and what came of them."""
