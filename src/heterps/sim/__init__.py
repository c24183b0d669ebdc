"""The job on a simulated clock: workers of any speeds over a policy, exact and repeatable.

result = simulate(Scenario(workers="8x1.0,2.3", jitter=0.1, horizon_s=1000), "dssp:3:12")
result.pushes, result.max_lead, result.mean_staleness

scenario    who takes how long, what goes wrong        simulator   the loop, and hooks to train for real
speeds      when an iteration ends                     result      what was found
measured    the workers of a run, by its trace         pace        how fast they are under other policies
spot        a plan while spot units come and go        spot_traces when they do, from a file or generated

and with real gradients (import these by their modules: they bring torch along):

job         a whole job by the engine of real runs     played      a scenario's workers as such a job
virtual     one run of a job under a variant           runs        many, in several processes
variants    policies, and steps beside them            steps       what is done with gradients
supply      samples for workers                        course      a run as values
compare     who reaches a target soonest, and why      child        a process that does one of several runs

and the parts of a simulated job:

coordinator    it carries out what the core wants      worker   its turns take simulated time
servers     servers, mirrors and their keeper
clients     clients of the servers, by a pump          storage      versions and checkpoints on the real disk
memory_journal   the journal of its coordinator

Read first: simulator.py, then job.py.
"""

from heterps.sim.result import Segment, SimResult, WorkerResult
from heterps.sim.scenario import Scenario, load_scenario
from heterps.sim.simulator import Hooks, Simulator, simulate

__all__ = ["Hooks", "Scenario", "Segment", "SimResult", "Simulator", "WorkerResult", "load_scenario", "simulate"]
