"""The coordinator, which controls a job: it decides what workers do next, and when the model is saved.

core              from the start of the workers to the last checkpoint: messages and the time in, effects out
effects, setup    what the core wants done, and what it begins with
coordinator       the shell of the core: it hears, sends, saves and writes
flow              which iterations are under way: round_flow (BSP), lane_flow (ASP, SSP, DSSP)
reconfiguration   scale and replan, which wait for a cut    scaling      what a change of counts must respect
accounting        what was done and paid                    stage_stats  how busy each stage was
model             the whole model, as the coordinator sees  worker_state what workers have and servers have not
fleet, failures   who works, and which error ended a run    positions, traces   the data's position, policies' decisions

make_flow   the flow of a job                           follow_ups   what follows from rounds and batches, in order
waits       what the coordinator waits for              worker_places  who is there and who has taken a place
silence     who has not been heard of for too long       replies      what commands that ask are told
recovery    workers that died and come back             loss_budget  how many may be lost within an hour
starts      how workers start, and how units are emulated    fitted_shares  samples of a round, by speed
origin      where a run begins                          saving       checkpoints
journal     decisions, for another coordinator          following, publishing   versions for those who use the model
quarantine  rows of batches that were skipped

Read first: core.py, then flow.py.
"""
