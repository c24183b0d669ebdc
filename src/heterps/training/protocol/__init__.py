"""What the coordinator and the workers of a job agree on.

messages       their headers, with a drawing of who says what to whom
border         the codec of stage borders: live values and gradients as frames
layout         which workers run which stage, and which lanes lead through them
stage_tables   which tables each stage has            emulation, pacing, predicted   units that are not here

emulated_units what such a unit can do                doings      computing, communicating, waiting

Read first: messages.py, then layout.py.
"""
