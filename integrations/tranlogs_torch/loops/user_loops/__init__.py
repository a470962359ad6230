"""A script's own `for batch in loader:` over a tracked loader: its batches are boundaries, and it resumes at the next one.

Python looks `__iter__` up on the type, so a tracked loader gets a subclass of its class that gives out passes. A pass is one
iteration over the loader. The pass that asks for a batch first after a step *leads*: each batch that it asks for is a boundary.
A pass over another loader that the same loop asks is a *companion* (`zip`, a second source): its position comes back, too.
Other iterations are not counted: under `no_grad`, before `recover()`, over the leading loader in the loop's own body, in
another thread or process, after `close()`.

After a crash the script runs from its start. Passes that took steps yield nothing. Passes that took none (a look at a batch, an
evaluation) run as before, in the recorded order. The pass in which the run stood resumes. Code per epoch runs again for the
finished epochs; what it does to the state is undone when the resumed pass is opened.
"""
