"""What clients and servers agree on, below the messages of requests.

messages    greetings, refusals, questions that anybody may ask    frames      arrays beside headers
roster      who serves, with incarnations, and what each holds     specs       what the tables of a job are
parts       tables in parts of bounded size                        row_files   files of rows that all share

Read first: messages.py.
"""
